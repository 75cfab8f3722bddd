"""Plots show the points they should, as PNG and SVG."""

import json
from xml.etree import ElementTree

import pytest

from maxup.report.paper import load_paper
from maxup.report.plots import plots, read_curve
from maxup.report.results import load_results
from maxup.report.tables import compare
from tests.report.runs import write_run

PAPER = load_paper()
CURVE = "".join(json.dumps({"step": e, "epoch": e, "test_accuracy": 0.5 + 0.04 * e}) + "\n" for e in range(1, 6))


def drawn(name, root=None):
    found = load_results(root, root)[0] if root else []
    return {plot.name: plot for plot in plots(compare(name, PAPER[name], found), found)}


def test_without_results_only_the_paper_s_ablation_is_drawn():
    found = {name: drawn(name) for name in PAPER}
    models = {"ResNet-110": "table-ablation-m-resnet_110", "WideResNet-28-10": "table-ablation-m-wideresnet_28_10"}
    assert {name: list(several) for name, several in found.items() if several} == {"table-ablation": [*models.values()]}
    for row in PAPER["table-ablation"].rows.values():
        assert f"{row.values['top1'].mean:.2f} at m = {row.m}" in found["table-ablation"][models[row.model]].description


def test_curves_and_cost_of_ours(tmp_path):
    for seed in range(2):
        write_run(tmp_path, "cifar10/resnet110-cutout", seed, 0.9, curve=CURVE)
        write_run(tmp_path, "cifar10/resnet110-cutout-maxup", seed, 0.91, curve=CURVE, recipe={"objective": "maxup"},
                  stem=f"seed-{seed}-budget-0.5", seconds=180)  # fmt: skip
    found = drawn("table-cifar10", tmp_path)
    assert list(found) == ["table-cifar10-curves-resnet_110", "table-cifar10-cost-resnet_110"]
    assert "MaxUp+Cutout, m = 4, budget 0.5: 91.00 in 3 minutes" in found["table-cifar10-cost-resnet_110"].description
    for plot in found.values():
        assert plot.png.startswith(b"\x89PNG")
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")
        plot.save(tmp_path)
        assert (tmp_path / f"{plot.name}.svg").read_bytes() == plot.svg
    assert drawn("table-cifar10", tmp_path)["table-cifar10-cost-resnet_110"].svg == plot.svg  # the same every time


@pytest.mark.parametrize("tail", ["", "{", "[]\n", '{"epoch": "nan", "test_accuracy": 1}\n', '{"epoch": 9}\n', "\x00"])
def test_a_curve_is_read_as_far_as_it_can_be(tmp_path, tail):
    write_run(tmp_path, "cifar10/resnet110-cutout", 0, 0.9, curve=CURVE + tail)
    (result,) = load_results(tmp_path, tmp_path)[0]
    line = compare("table-cifar10", PAPER["table-cifar10"], [result]).lines[0]
    assert read_curve(result, line) == [(e, pytest.approx(50 + 4 * e)) for e in range(1, 6)]

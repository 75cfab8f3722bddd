"""Plots show the points they should, as PNG and SVG."""

import json
from xml.etree import ElementTree

import pytest

from maxup.lab.report.custom_tables import with_other_m
from maxup.lab.report.plots import plots
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

PAPER = load_paper()
CURVE = "".join(json.dumps({"step": e, "epoch": e, "test_accuracy": 0.5 + 0.04 * e}) + "\n" for e in range(1, 6))
BASELINE, MAXUP = "cifar10/resnet110-cutout", "cifar10/resnet110-cutout-maxup"


def drawn(name, root=None):
    found = load_results(root, root)[0] if root else []
    return {plot.name: plot for plot in plots(compare(name, with_other_m(PAPER[name], found), found), found)}


def test_without_results_only_the_paper_s_ablation_is_drawn():
    found = {name: drawn(name) for name in PAPER}
    models = {"ResNet-110": "table-ablation-m-resnet_110", "WideResNet-28-10": "table-ablation-m-wideresnet_28_10"}
    assert {name: list(several) for name, several in found.items() if several} == {"table-ablation": [*models.values()]}
    for row in (row for row in PAPER["table-ablation"].rows.values() if not row.ours):
        assert f"{row.values['top1'].mean:.2f} at m = {row.m}" in found["table-ablation"][models[row.model]].description


def test_curves_and_cost_of_ours(tmp_path):
    for seed in range(2):
        write_run(tmp_path, BASELINE, seed, 0.9, curve=CURVE)
        write_run(tmp_path, MAXUP, seed, 0.91, curve=CURVE, recipe={"objective": {"name": "maxup"}},
                  stem=f"seed-{seed}-budget-0.5", seconds=180)  # fmt: skip
    found = drawn("table-cifar10", tmp_path)
    assert list(found) == ["table-cifar10-curves-resnet_110", "table-cifar10-cost-resnet_110"]
    description = found["table-cifar10-cost-resnet_110"].description
    assert "MaxUp+Cutout, m = 4, 100 of 200 epochs: 91.00 in 3 minutes" in description
    for plot in found.values():
        assert plot.png.startswith(b"\x89PNG")
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")
        plot.save(tmp_path)
        assert (tmp_path / f"{plot.name}.svg").read_bytes() == plot.svg
    assert drawn("table-cifar10", tmp_path)["table-cifar10-cost-resnet_110"].svg == plot.svg  # the same every time


@pytest.mark.parametrize("copies", [(1, 4), (1, 2, 4, 10, 20)])
def test_accuracy_and_time_against_m_need_three_m(tmp_path, copies):
    for m in copies:
        recipe = {"objective": {"name": "maxup", "m": m}} if m > 1 else {}
        write_run(tmp_path, MAXUP if m > 1 else BASELINE, 0, 0.9 + m / 1000, recipe=recipe, seconds=100.0 * m,
                  stem="seed-0" if m in (1, 4) else f"seed-0-m-{m}", training_seconds=60.0 * m)  # fmt: skip
    found = drawn("table-ablation", tmp_path)
    names = [f"table-ablation-{kind}-resnet_110_on_cifar_10" for kind in ("m", "time")]
    assert [name in found for name in names] == [len(copies) > 2] * 2
    if len(copies) > 2:
        accuracy, time = (found[name].description for name in names)
        assert accuracy == "ours (n = 1): " + ", ".join(f"{90 + m / 10:.2f} at m = {m}" for m in copies)
        assert time == "ours: " + ", ".join(f"{m} minutes at m = {m}" for m in copies)  # training time, not total time
    assert "table-ablation-m-resnet_110" in found  # the paper's


def test_families_of_one_model_are_not_mixed(tmp_path):
    from maxup.lab.report.custom_tables import other_results

    for way in ("gauss", "cut"):
        for m in (1, 2, 4):
            recipe = {"objective": {"name": "maxup", "m": m}} if m > 1 else {}
            stem = "seed-0" if m in (1, 4) else f"seed-0-m-{m}"
            write_run(tmp_path, f"my/net-{way}{'-maxup' if m > 1 else ''}", 0, 0.5, recipe=recipe, stem=stem)
    found = load_results(tmp_path, tmp_path)[0]
    table = other_results(found, [])
    names = [plot.name for plot in plots(compare("others", table, found), found)]
    assert names == [
        "others-m-my_net_cut", "others-time-my_net_cut", "others-m-my_net_gauss", "others-time-my_net_gauss",
        "others-cost-my_net",
    ]  # fmt: skip


@pytest.mark.parametrize("perplexity", ["inf", 7e300, 1.7e308])
def test_infinite_perplexities_are_not_drawn(tmp_path, perplexity):
    from maxup.lab.report.custom_tables import other_results

    baseline = "text/awd_lstm-embedding_dropout"
    curve = "".join(
        json.dumps({"step": e, "epoch": e, "train_loss": loss, "validation_perplexity": 9.0}) + "\n"
        for e, loss in ((1, 3.0), (2, 1.7e308), (3, 10**400))
    )
    write_run(tmp_path, baseline, 0, 0, test_perplexity=90.0, curve=curve)
    write_run(tmp_path, f"{baseline}-maxup", 0, 0, test_perplexity=perplexity, curve=curve)
    found = load_results(tmp_path, tmp_path)[0]
    drawn = plots(compare("text", other_results(found, [], text=True), found), found)
    assert [plot.name for plot in drawn] == ["text-curves-text_awd_lstm", "text-cost-text_awd_lstm"]
    assert drawn[1].description == "embedding_dropout: 90.00 in 60 seconds"
    assert drawn[1].title.startswith("text/awd_lstm: perplexity against training time, mean")

"""Curves per epoch from a metrics.jsonl."""

import json
import os

import pytest

from maxup.lab.report.curves import curves, read_curves
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

TABLE = load_paper()["table-cifar10"]
NAME = "cifar10/resnet110-cutout"


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


CURVE = lines(*({"step": e, "epoch": e, "test_accuracy": 0.5 + 0.04 * e} for e in range(1, 6)))


def read(root):
    (result,) = load_results(root, root)[0]
    return read_curves(result, compare("table-cifar10", TABLE, [result]).lines[0])


@pytest.mark.parametrize("tail", ["", "{", "[]\n", '{"epoch": "nan", "test_accuracy": 1}\n', '{"epoch": 9}\n', "\x00"])
def test_a_curve_is_read_up_to_a_damaged_line(tmp_path, tail):
    write_run(tmp_path, NAME, 0, 0.9, curve=CURVE + tail)
    values, losses = read(tmp_path)
    assert values == {e: pytest.approx(50 + 4 * e) for e in range(1, 6)}
    assert not losses


def test_an_epoch_s_training_loss_is_the_mean_over_its_steps(tmp_path):
    """Records come every 50 steps and at the end of an epoch, here of 60 steps."""
    records = [(50, 3.0), (60, 1.0), (100, 2.0), (120, 5.0)]
    ends = {60: {"step": 60, "epoch": 1, "test_accuracy": 0.5}, 120: {"step": 120, "epoch": 2, "test_accuracy": 0.6}}
    rows = [r for step, loss in records for r in ({"step": step, "train_loss": loss}, ends.get(step)) if r]
    write_run(tmp_path, NAME, 0, 0.6, curve=lines(*rows))
    values, losses = read(tmp_path)
    assert values == pytest.approx({1: 50, 2: 60})
    assert losses == pytest.approx({1: (50 * 3 + 10 * 1) / 60, 2: (40 * 2 + 20 * 5) / 60})


def test_one_epoch_and_one_seed_are_enough(tmp_path):
    """A second run without a curve changes nothing."""
    write_run(tmp_path, NAME, 0, 0.6, curve=lines({"step": 3, "train_loss": 1.0}, {"epoch": 1, "test_accuracy": 0.6}))
    write_run(tmp_path, NAME, 1, 0.7, curve="")
    found = load_results(tmp_path, tmp_path)[0]
    comparison = compare("table-cifar10", TABLE, found)
    plot = curves(comparison, "ResNet-110", comparison.lines[:2], found)
    assert plot.description == "Cutout ends at 60.00"
    assert curves(comparison, "ResNet-110", comparison.lines[2:4], found) is None


def test_the_ticks_are_whole_epochs(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("maxup.lab.report.curves.finish_figure", lambda figure, *_: figures.append(figure))
    write_run(tmp_path, NAME, 0, 0.6, curve=lines(*({"epoch": e, "test_accuracy": 0.3 * e} for e in (1, 2))))
    found = load_results(tmp_path, tmp_path)[0]
    comparison = compare("table-cifar10", TABLE, found)
    curves(comparison, "ResNet-110", comparison.lines[:2], found)
    assert all(tick == round(tick) for tick in figures[0].axes[-1].get_xticks())


def test_a_file_that_is_too_large_has_no_curve(tmp_path):
    write_run(tmp_path, NAME, 0, 0.9, curve=CURVE)
    (path,) = tmp_path.rglob("metrics.jsonl")
    os.truncate(path, 1 << 40)
    assert read(tmp_path) == ({}, {})

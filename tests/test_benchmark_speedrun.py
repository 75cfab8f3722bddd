"""`python -m benchmarks.speedrun` trains every seed of every row once, and m = 1 for the time of another row."""

import json

import pytest
import torch

from benchmarks import speedrun

N, SIDE = 40, 12


@pytest.fixture
def run(monkeypatch, tmp_path):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 3, SIDE, SIDE, generator=g), torch.arange(N) % 10
    monkeypatch.setattr(speedrun, "load", lambda folder, held_out: (x, y, x, y))
    monkeypatch.setattr(speedrun, "BATCH", 20)
    monkeypatch.setattr(speedrun.batches, "__defaults__", (20,))
    monkeypatch.setenv("MAXUP_COMMIT", "0" * 40)
    path = tmp_path / "speedrun.json"

    def run(*rows, runs=3):
        argv = ["speedrun", "--data", "unused", "--epochs", "2", "--widths", "4", "4", "--depth", "1"]
        monkeypatch.setattr("sys.argv", [*argv, "--rows", *rows, "--runs", str(runs), "--out", str(path)])
        speedrun.main()
        return json.loads(path.read_text())["rows"]

    return run


def test_equal_time_is_set_by_the_first_two_seeds(run):
    first = run("m1", "fast4", "m1xR", runs=2)
    (name,) = set(first) - {"m1", "fast4"}
    seconds = {row: sum(one["seconds"] for one in first[row]) / 2 for row in ("m1", "fast4")}
    assert float(name.removeprefix("m1x")) == pytest.approx(seconds["fast4"] / seconds["m1"], abs=0.0251)
    assert all([one["seed"] for one in runs] == [0, 1] for runs in first.values())
    more = run("m1", "fast4", "m1xR")
    assert set(more) == set(first)
    assert all(more[row][:2] == first[row] for row in first)
    assert all([one["seed"] for one in runs] == [0, 1, 2] for runs in more.values())
    assert set(run("m1", "fast4", "m1xR", "m2", runs=1)) == {*first, "m2"}  # a row more


def test_a_longer_row_trains_for_more_epochs(run):
    rows = run("m1", "m1x1.5", runs=1)
    assert [len(rows[name][0]["curve"]) for name in ("m1", "m1x1.5")] == [2, 3]
    assert all(0 <= rows[name][0]["accuracy"] <= 100 for name in rows)


@pytest.mark.parametrize("rows", [["m1xR", "m1"], ["fast4", "m1xR"]])
def test_equal_time_needs_two_rows(run, rows):
    with pytest.raises(SystemExit, match="m1xR needs the row m1, and a row before it whose time it takes"):
        run(*rows)


def test_an_unknown_row(run):
    with pytest.raises(SystemExit, match="row 'n4' is not known; use m, fast"):
        run("m1", "n4")

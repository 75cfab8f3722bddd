"""`python -m benchmarks.speedrun` trains every seed of every row once, and m = 1 for the time of another row."""

import json

import pytest
import torch

from benchmarks import speedrun
from maxup.lab.robustness.corruptions import CORRUPTIONS

N, SIDE = 40, 12


@pytest.fixture
def run(monkeypatch, tmp_path):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (N, 3, SIDE, SIDE), generator=g, dtype=torch.uint8), torch.arange(N) % 10
    monkeypatch.setattr(speedrun, "load", lambda folder, held_out: (x, y, x, y))
    monkeypatch.setenv("MAXUP_COMMIT", "0" * 40)
    path = tmp_path / "speedrun.json"

    def run(*rows, runs=3, options=()):
        argv = ["speedrun", "--data", "unused", "--epochs", "2", "--widths", "4", "4", "--depth", "1", "--batch", "20"]
        argv += ["--rows", *rows, "--runs", str(runs), "--out", str(path), *options]
        monkeypatch.setattr("sys.argv", argv)
        speedrun.main()
        return json.loads(path.read_text())["rows"]

    return run


@pytest.fixture
def _seconds(monkeypatch):
    """Replace training by fixed times: 1 second per epoch with m = 1, and 1.86 with m > 1."""

    def train(self):
        seconds = self.epochs * (1 if self.objective.m(0) == 1 else 1.86)
        return {"seconds": seconds, "accuracy": 0.0, "accuracy_flip": 0.0}

    monkeypatch.setattr(speedrun.Run, "train", train)


@pytest.mark.usefixtures("_seconds")
def test_equal_time_is_set_by_the_first_two_seeds(run):
    first = run("m1", "fast4", "m1xR", runs=2)
    assert set(first) == {"m1", "fast4", "m1x1.85"}
    assert all([one["seed"] for one in runs] == [0, 1] for runs in first.values())
    assert [one["seconds"] for one in first["m1x1.85"]] == [2 * 1.85] * 2
    more = run("m1", "fast4", "m1xR")
    assert all(more[row][:2] == first[row] for row in first)
    assert all([one["seed"] for one in runs] == [0, 1, 2] for runs in more.values())
    assert set(run("m1", "fast4", "m1xR", "m2", runs=2)) == {*first, "m2"}  # one more row


def test_a_longer_row_trains_for_more_epochs(run):
    rows = run("m1", "m1x1.5", runs=1)
    assert [len(rows[name][0]["curve"]) for name in ("m1", "m1x1.5")] == [2, 3]
    assert all(0 <= rows[name][0]["accuracy"] <= 100 for name in rows)


def test_a_seed_chooses_the_same_images_for_every_row(run, monkeypatch):
    seen = []

    def train(self):
        seen.append((self.data[0].sum((1, 2, 3)), self.data[1]))
        return {"seconds": 1.0, "accuracy": 0.0, "accuracy_flip": 0.0}

    monkeypatch.setattr(speedrun.Run, "train", train)
    run("m1", "m2", runs=2, options=["--images", "20"])
    warm, again, *found = seen
    assert torch.equal(warm[0], again[0])
    for _, labels in found:
        assert torch.equal(labels.bincount(), torch.full((10,), 2))
    (m1, m2), (other, _) = found[:2], found[2:]
    assert torch.equal(m1[0], m2[0])
    assert not torch.equal(m1[0], other[0])


def test_robustness_is_measured(run):
    (found,) = run("m1", runs=1, options=["--robustness"])["m1"]
    assert {"corrupted", "attacked", "nll", "ece", *CORRUPTIONS} <= set(found)


@pytest.mark.parametrize("count", [25, 400])
def test_images_that_cannot_be_chosen(run, count):
    with pytest.raises(SystemExit, match=f"--images must be a multiple of 10, and at most 10 times .*; it is {count}"):
        run("m1", options=["--images", str(count)])


def test_a_row_without_a_step(run):
    with pytest.raises(SystemExit, match=r"row m1x0\.1: .* 40 images in batches of 20 are less than one step"):
        run("m1", "m1x0.1", runs=1)


@pytest.mark.parametrize(
    ("rows", "runs"),
    [("m1xR m1", 3), ("fast4 m1xR", 3), ("m1 fast4 m1xR", 1), ("m1 m2 m1xR m4 m1xR", 3)],
)
def test_equal_time_needs_two_rows_and_two_seeds(run, rows, runs):
    with pytest.raises(SystemExit, match="m1xR needs the row m1, a row before it whose time it takes, and --runs of 2"):
        run(*rows.split(), runs=runs)


@pytest.mark.parametrize("row", ["n4", "m0", "m1x0", "m1x1.2.3"])
def test_an_unknown_row(run, row):
    with pytest.raises(SystemExit, match=f"row '{row}' is not known; use m, fast"):
        run("m1", row)


def test_a_file_that_cannot_be_resumed(run, tmp_path, monkeypatch):
    (tmp_path / "speedrun.json").write_text("{")
    with pytest.raises(SystemExit, match=r"speedrun\.json is not a result of this script; choose another --out"):
        run("m1")
    (tmp_path / "speedrun.json").unlink()
    monkeypatch.setenv("MAXUP_COMMIT", "0" * 40 + "+")
    run("m1", runs=1)
    with pytest.raises(SystemExit, match="or is not of the clean commit 0"):
        run("m1", runs=2)
    with pytest.raises(SystemExit, match="cannot be written: Is a directory"):
        run("m1", options=["--out", str(tmp_path)])


def test_losses_that_are_not_finite_survive_resuming(run):
    first = run("m1", runs=1, options=["--lr", "1e30"])
    assert run("m1", runs=3, options=["--lr", "1e30"])["m1"][0] == first["m1"][0]
    assert any("nan" in str(loss) or "inf" in str(loss) for loss in first["m1"][0]["curve"])

"""`python -m benchmarks.speedrun` trains every seed of every row once, and m = 1 for the time of another row."""

import json

import pytest
import torch
from torch.nn import functional as F

from benchmarks import speedrun
from benchmarks.robust_images import RobustImages
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
    assert found["corrupted"] == pytest.approx(sum(found[kind] for kind in CORRUPTIONS) / len(CORRUPTIONS))
    assert 0 <= found["attacked"] <= found["accuracy"] + 1e-6
    assert found["nll"] > 0
    assert 0 <= found["ece"] <= 1


def test_corrupted_and_attacked_images():
    torch.manual_seed(0)
    x, y = torch.randint(256, (30, 3, 8, 8), dtype=torch.uint8), torch.randint(3, (30,))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()
    found = RobustImages(x, y, lambda pixels: 2 * pixels - 1, "cpu").measure(model, model)

    def accuracy(pixels):
        return 100 * float((model(2 * pixels - 1).argmax(1) == y).float().mean())

    for name, kind in CORRUPTIONS.items():
        levels = [accuracy((255 * kind.apply(x / 255, level, torch.arange(30))).round() / 255) for level in kind.levels]
        assert found[name] == pytest.approx(sum(levels) / 5)
    gradient = torch.func.grad(lambda pixels: F.cross_entropy(model(2 * pixels - 1), y, reduction="sum"))(x / 255)
    step = (x / 255 + 0.25 * F.normalize(gradient.flatten(1)).view(x.shape)).clamp(0, 1)
    assert found["attacked"] <= accuracy(step) + 100 / 30  # ten steps are not worse than one
    assert found["attacked"] < accuracy(x / 255)


@pytest.mark.parametrize("rows", [["m1xR", "m1"], ["fast4", "m1xR"]])
def test_equal_time_needs_two_rows(run, rows):
    with pytest.raises(SystemExit, match="m1xR needs the row m1, and a row before it whose time it takes"):
        run(*rows)


def test_an_unknown_row(run):
    with pytest.raises(SystemExit, match="row 'n4' is not known; use m, fast"):
        run("m1", "n4")

"""The measurement of a run against a loop over its test images, and the file."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from maxup.errors import RunError
from maxup.lab.data.folder import scan
from maxup.lab.data.images import Images
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.robustness.measure import RADII, average, measure, save
from maxup.lab.train.runs import evaluate, open_run
from maxup.objectives.adversarial import Adversarial
from tests.cli.runs import make


@pytest.fixture(scope="module", params=["false", "true"], ids=["normalized-data", "normalizing-network"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make(folder, "--model.normalize", request.param)
    return open_run(folder)


def network(run):
    """The network as a function of pixels in [0, 1], written out."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (run.task.train.mean, run.task.train.std))
    return lambda x: run.model(x if run.recipe.model.normalize else (x - mean) / std)


def all_levels(found):
    return [*found["corruptions"].values(), found["pgd"]["levels"]]


@pytest.fixture(scope="module")
def found(run):
    return measure(run, images=60, quiet=True)


def test_all_images_give_the_metrics_of_eval(run, monkeypatch):
    monkeypatch.setattr("maxup.lab.robustness.measure.RADII", ())
    monkeypatch.setattr("maxup.lab.robustness.measure.CORRUPTIONS", {"blur": CORRUPTIONS["blur"]})
    clean, expected = measure(run, quiet=True)["clean"], evaluate(run)["test"]
    assert clean["accuracy"] == pytest.approx(expected["accuracy"], abs=1.5 / expected["count"])
    assert clean["nll"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("cut", ["no_grad", "detach"])
def test_a_network_without_gradients_of_its_pixels_is_rejected(run, cut):
    class Cut(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = run.model

        def forward(self, x):
            with torch.set_grad_enabled(cut != "no_grad"):
                return self.net(x.detach())

    with pytest.raises(RunError, match=r"needs gradients with respect to the pixels, but .* remove torch.no_grad\(\)"):
        measure(replace(run, model=Cut()), images=10, quiet=True)


@torch.no_grad()
def test_corrupted_accuracy_is_that_of_a_loop(run, found):
    data, net = run.task.test, network(run)
    chosen = [i * len(data) // 60 for i in range(60)]
    assert found["images"] == 60
    for name, kind in CORRUPTIONS.items():
        for level, one in zip(kind.levels, found["corruptions"][name], strict=True):
            right, loss = 0, 0.0
            for i in chosen:
                x = kind.apply(data.x[i : i + 1].float() / 16, level, torch.tensor([i]))
                logits = net(x)
                right += int(logits.argmax()) == int(data.y[i])
                loss += float(F.cross_entropy(logits, data.y[i : i + 1]))
            assert one["level"] == level
            assert one["accuracy"] == pytest.approx(right / 60, abs=1.5 / 60)
            assert one["nll"] == pytest.approx(loss / 60, rel=1e-4)
    everything = [one for levels in found["corruptions"].values() for one in levels]
    assert len(everything) == 25
    assert found["corrupted"]["accuracy"] == pytest.approx(sum(one["accuracy"] for one in everything) / 25)


@torch.no_grad()
def test_attack_climbs_the_loss_within_the_ball(run, found, monkeypatch):
    levels = found["pgd"]["levels"]
    losses = [found["clean"]["nll"], *(one["nll"] for one in levels)]
    assert losses == sorted(losses)
    assert [one["level"] for one in levels] == list(RADII)
    seen = []

    class Recorded(Adversarial):
        def attack(self, model, batch, delta):
            found = super().attack(model, batch, delta)
            seen.append((self.radius, *batch, delta[0], found[0]))
            return found

    monkeypatch.setattr("maxup.lab.robustness.measure.Adversarial", Recorded)
    again = measure(run, images=20, quiet=True)
    assert [radius for radius, *_ in seen] == list(RADII)  # one batch of 20 images
    net = network(run)
    for (radius, x, y, start, moved), one in zip(seen, again["pgd"]["levels"], strict=True):
        distance = (moved - x).flatten(1).norm(dim=1)  # of pixels
        assert (distance <= radius + 1e-5).all()
        assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
        assert (start.flatten(1).norm(dim=1) <= radius + 1e-5).all()
        losses = [F.cross_entropy(net(at), y) for at in (x, (x + start).clamp(0, 1), moved)]
        assert losses[2] > max(losses[:2])
        assert one["nll"] == pytest.approx(float(losses[2]), rel=1e-4)
        assert one["accuracy"] == pytest.approx(float((net(moved).argmax(1) == y).double().mean()))


def test_result_does_not_depend_on_the_batch_size_and_the_run_is_unchanged(run, found):
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.recipe.batch_size, kept = 7, run.recipe.batch_size
    try:
        again = measure(run, images=60, quiet=True)
    finally:
        run.recipe.batch_size = kept
    for levels, others in zip(all_levels(found), all_levels(again), strict=True):
        for one, other in zip(levels, others, strict=True):
            assert one["nll"] == pytest.approx(other["nll"], rel=1e-3)
            for metric in ("accuracy", "ece"):  # an image may be on a boundary
                assert one[metric] == pytest.approx(other[metric], abs=1.5 / 60)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert not run.model.training
    assert all(p.grad is None for p in run.model.parameters())


def test_file_keeps_the_measurement_with_more_images(tmp_path):
    more, less = ({"images": n, "clean": {"accuracy": 0.5}} for n in (100, 20))
    assert save(more, tmp_path, checkpoint="last", step=7) == (tmp_path / "robustness.json", True)
    content = (tmp_path / "robustness.json").read_text()
    assert json.loads(content).items() >= {**more, "checkpoint": "last", "step": 7}.items()
    assert save(less, tmp_path, checkpoint="last", step=7) == (tmp_path / "robustness.json", False)
    assert (tmp_path / "robustness.json").read_text() == content
    assert save(less, tmp_path, checkpoint="best", step=7) == (tmp_path / "robustness-best.json", True)
    assert save(less, tmp_path, checkpoint="last", step=8)[1]  # trained further
    (tmp_path / "robustness.json").write_text("{")
    assert save(less, tmp_path, checkpoint="last", step=8)[1]


def test_mean_of_levels():
    assert average([{"level": 1, "nll": 1.0}, {"level": 2, "nll": 2.0}]) == {"nll": 1.5}


class Task:
    generator = torch.Generator()

    def __init__(self, x):
        channels = x.shape[1]
        self.test = Images(
            x, torch.zeros(len(x), dtype=torch.int64), ("a", "b"), (0.0,) * channels, (1.0,) * channels, 1
        )

    def prepare(self, x):
        return x


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(4, 5), r"measured on images, but the examples have shape \(5,\)"),
        (torch.rand(4, 1, 8, 8) * 4 - 1, r"needs pixels in \[0, 1\], but they are from -0.* to [23].*; scale them"),
    ],
    ids=["rows", "range"],
)
def test_other_data_get_one_sentence(run, x, message):
    with pytest.raises(RunError, match=message):
        measure(replace(run, task=Task(x)), quiet=True)


def test_files_that_cannot_be_read_are_left_out(run, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (40, 40), "red" if name == "a" else "blue").save(tmp_path / name / f"{i}.png")
    (tmp_path / "a" / "0.png").write_bytes(b"no image")
    task = Task(torch.rand(1, 3, 8, 8))
    task.test = replace(scan(tmp_path), size=32, workers=0)
    opened = replace(run, task=task, model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2)))
    assert measure(opened, quiet=True)["images"] == 3
    with pytest.raises(
        RunError, match=r"none of the 1 test images can be read, such as .*a/0\.png; fix them, or use more --images"
    ):
        measure(opened, images=1, quiet=True)

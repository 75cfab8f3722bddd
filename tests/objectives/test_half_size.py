"""`MaxUp(fast=True)`: winners by the losses at half size, compared with exact scoring on the same copies."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import Compose, CutMix, Cutout, Gaussian, MaxUp
from maxup.objectives.half_size import halve, share_of_gap


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(16, 3, 8, 8), torch.randint(5, (16,))


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(8, 5),
    )  # fmt: skip


def reference(model, batch, m, seed):
    """Losses of m copies at full and at half size, by a slow loop, and the copies."""
    perturbation, g = Compose(Gaussian(1.0), Cutout(4)), torch.Generator().manual_seed(seed)
    full, half, copies = [], [], []
    for _ in range(m):
        x, y = perturbation.apply(batch, perturbation.draw(batch, g))
        copies.append(x)
        pooled = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).mean((3, 5))
        for losses, images in ((full, x), (half, pooled)):
            state = {k: v.clone() for k, v in model.state_dict().items()}
            torch.manual_seed(7)
            with torch.no_grad():
                losses.append(F.cross_entropy(model(images), y, reduction="none"))
            model.load_state_dict(state)
    return torch.stack(full), torch.stack(half), torch.stack(copies)


def make(seed, **settings):
    perturbation, generator = Compose(Gaussian(1.0), Cutout(4)), torch.Generator().manual_seed(seed)
    return MaxUp(perturbation, m=4, fast=True, generator=generator, **settings)


def test_winners_are_those_at_half_size(model, batch):
    objective = make(0)
    objective.select(model, *batch)  # the first step is checked
    objective.generator.manual_seed(3)
    torch.manual_seed(7)
    x, _ = objective.select(model, *batch)
    full, half, copies = reference(model, batch, 4, 3)
    assert torch.equal(x, copies[half.argmax(0), torch.arange(16)])
    assert not torch.equal(half.argmax(0), full.argmax(0))


def test_some_steps_are_exact_and_measure_the_gap_kept(model, batch, monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 3)
    objective = make(0)
    assert objective.gap_kept is None
    for step in range(7):
        objective.generator.manual_seed(step)
        torch.manual_seed(7)
        outcome = objective.run(model, *batch)
        full, half, _ = reference(model, batch, 4, step)
        checked = step % 3 == 0
        assert torch.equal(outcome.worst.copy, (full if checked else half).argmax(0))
        chosen = full.gather(0, half.argmax(0)[None])[0]
        expected = float((chosen - full.mean(0)).sum() / (full.max(0).values - full.mean(0)).sum())
        if checked:
            assert outcome.report.gap_kept == pytest.approx(expected, abs=1e-5) == objective.gap_kept
            assert 0 < expected < 1
        else:
            assert outcome.report.gap_kept is None
            assert objective.gap_kept is not None
        # the stream of draws does not depend on the check
        after = torch.Generator().manual_seed(step)
        for _ in range(4):
            objective.perturbation.draw(batch, after)
        assert torch.equal(objective.generator.get_state(), after.get_state())


def test_wide_passes(model, batch):
    model[1] = nn.GroupNorm(2, 8)  # BatchNorm cannot normalize several copies together
    found = []
    for chunk_size in (1, 2, 4):
        objective = make(0, chunk_size=chunk_size)
        copies, one = [], copy.deepcopy(model)
        for _ in range(2):
            torch.manual_seed(7)
            copies.append(objective.run(one, *batch).worst.copy)
        found.append(torch.stack(copies))
    for one in found[1:]:
        assert torch.equal(one, found[0])


def test_resume_is_exact(model, batch, monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 3)

    def run(objective, steps):
        found = []
        for _ in range(steps):
            torch.manual_seed(7)
            found.append(objective.run(model.eval(), *batch).worst.copy)
        return found

    torch.manual_seed(5)
    objective = MaxUp(Compose(Gaussian(1.0), Cutout(4)), m=4, fast=True)
    run(objective, 2)
    state = objective.state_dict()
    assert state["gap_kept"] == objective.gap_kept
    whole = run(objective, 4)
    resumed = MaxUp(Compose(Gaussian(1.0), Cutout(4)), m=4, fast=True)
    resumed.load_state_dict(state)
    assert resumed.gap_kept == state["gap_kept"]
    for a, b in zip(run(resumed, 4), whole, strict=True):
        assert torch.equal(a, b)
    assert resumed.gap_kept == objective.gap_kept
    objective.load_state_dict({"seed": 1, "step": 0})  # of a run without fast=True
    assert objective.gap_kept is None


def test_steps_that_need_to_run_eagerly():
    objective = MaxUp(Gaussian(1.0), m=lambda step: 1 if step < 500 else 4, fast=True)
    found = []
    for objective.step in range(1501):
        if objective.needs_eager():
            found.append(objective.step)
    assert found == [500, 1000, 1500]
    objective.m, found = (lambda step: 1 if step < 7 else 4), []
    for objective.step in range(1001):
        if objective.needs_eager():
            found.append(objective.step)
    assert found == [7, 500, 1000]  # the first step after a warmup
    assert not MaxUp(Gaussian(1.0), m=4).needs_eager()


def test_the_gap_is_that_of_the_scores(model, batch, monkeypatch):
    """With score="kl" the worst copy is not the one with the highest loss. At full size, the selection is exact."""
    monkeypatch.setattr("maxup.objectives.maxup.halve", lambda x: x)
    objective = MaxUp(CutMix(num_classes=5), m=4, fast=True, score="kl")
    objective(model, *batch)
    assert objective.gap_kept == pytest.approx(1.0)


def test_share_of_gap_of_ties_is_nan():
    assert torch.isnan(share_of_gap([torch.ones(3), torch.ones(3)], torch.zeros(3, dtype=torch.long)))


def test_halve_crops_odd_sizes_and_keeps_the_memory_format():
    x = torch.randn(2, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    assert halve(x).shape == (2, 3, 4, 3)
    assert halve(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(4, 6), r"fast=True needs float images \(B, C, H, W\) of at least 2 x 2 pixels, but x has shape"),
        (torch.randn(4, 3, 1, 8), r"has shape \(4, 3, 1, 8\) and torch.float32; remove fast=True"),
        ({"a": torch.randn(4, 3, 8, 8)}, "but x is a dict; remove fast=True"),
    ],
)
def test_inputs_that_are_not_images(x, message):
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    objective = MaxUp(Gaussian(1.0), m=2, fast=True)
    model(next(iter(x.values())) if isinstance(x, dict) else x)
    with pytest.raises(ValueError, match=message):
        objective(model, x, torch.randint(3, (4,)))


def test_other_errors_are_not_explained_by_the_size(model, batch):
    with pytest.raises(ValueError, match="labels range from 0 to 9"):
        MaxUp(Gaussian(1.0), m=2, fast=True)(model, batch[0], torch.arange(16) % 10)


def test_a_model_of_one_size(batch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    with pytest.raises(ValueError, match=r"half the size, and the model failed: .*; remove fast=True, or use"):
        MaxUp(Gaussian(1.0), m=2, fast=True)(model, *batch)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"fast": "yes"}, TypeError, "fast='yes': fast must be True or False"),
        (
            {"fast": True, "strategy": "retain"},
            ValueError,
            "fast=True needs strategy='recompute'",
        ),
        ({"fast": True, "norm": "running"}, ValueError, "statistics of full-size images; remove norm='running'"),
    ],
)
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=message):
        MaxUp(Gaussian(1.0), **settings)

"""`MaxUp(fast=True)`: winners by running statistics or at half size, compared with exact scoring of the same copies."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import Compose, CutMix, Cutout, FeatureNoise, Gaussian, MaxUp, MaxUpWarning
from maxup.objectives.fast_scoring import FastScoring, halve, is_large, share_of_gap
from maxup.objectives.running_max import RunningMax
from maxup.perturb.adapters import Views


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(8, 5),
    )  # fmt: skip


@pytest.fixture
def large(monkeypatch):
    """Treat the images of these tests as large ones."""
    monkeypatch.setattr("maxup.objectives.fast_scoring.HALVE_FROM", 8)


def reference(model, batch, m, seed, *, half=False):
    """Losses of m copies by exact and by fast scoring, by a slow loop, and the copies."""
    perturbation, g = Compose(Gaussian(1.0), Cutout(4)), torch.Generator().manual_seed(seed)
    exact, fast, copies = [], [], []
    for _ in range(m):
        x, y = perturbation.apply(batch, perturbation.draw(batch, g))
        copies.append(x)
        small = x.view(*x.shape[:2], 4, 2, 4, 2).mean((3, 5))
        for losses, images, training in ((exact, x, True), (fast, small if half else x, False)):
            one = copy.deepcopy(model)
            one[1].train(training)
            one[5].train(losses is exact)  # dropout
            torch.manual_seed(7)
            with torch.no_grad():
                losses.append(F.cross_entropy(one(images), y, reduction="none"))
    return torch.stack(exact), torch.stack(fast), torch.stack(copies)


def make(seed, **settings):
    perturbation, generator = Compose(Gaussian(1.0), Cutout(4)), torch.Generator().manual_seed(seed)
    return MaxUp(perturbation, m=4, fast=True, generator=generator, **settings)


def test_winners_are_those_of_running_statistics(model, batch):
    objective = make(0)
    objective.select(model, *batch)  # the first step is checked
    objective.generator.manual_seed(3)
    torch.manual_seed(7)
    x, _ = objective.select(model, *batch)
    exact, running, copies = reference(model, batch, 4, 3)
    assert torch.equal(x, copies[running.argmax(0), torch.arange(16)])
    assert not torch.equal(running.argmax(0), exact.argmax(0))


def test_winners_of_large_images_are_those_at_half_size(model, batch, large):
    objective = make(0)
    objective.select(model, *batch)  # the first step is checked
    objective.generator.manual_seed(3)
    torch.manual_seed(7)
    x, _ = objective.select(model, *batch)
    exact, half, copies = reference(model, batch, 4, 3, half=True)
    assert torch.equal(x, copies[half.argmax(0), torch.arange(16)])
    assert not torch.equal(half.argmax(0), exact.argmax(0))


class OneSize(nn.Module):
    """A network for images of 8 x 8 pixels, with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(192, 5)

    def forward(self, x):
        assert x.shape[-1] == 8, "this network needs 8 x 8 pixels"
        return self.head(self.norm(x).flatten(1))


def test_a_model_of_one_size_is_scored_at_full_size(batch, monkeypatch):
    def winners():
        torch.manual_seed(0)
        model, objective = OneSize(), make(5)
        return torch.stack([objective.select(model, *batch)[0] for _ in range(3)])

    small = winners()
    monkeypatch.setattr("maxup.objectives.fast_scoring.HALVE_FROM", 8)
    with pytest.warns(MaxUpWarning, match="at full size, because half the size failed: this network") as found:
        large = winners()
    assert len(found) == 1
    assert torch.equal(large, small)


class DropoutFunction(nn.Module):
    """A network whose own forward drops inputs, which stays active when copies are scored."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(F.dropout(x, 0.3, self.training))


def test_copies_that_cannot_share_masks_are_scored_one_at_a_time(model, batch):
    """On a GPU several copies per pass are the default, so a compiled model with dropout is not an error."""
    winners = []
    model = DropoutFunction(model)
    for scored in (model, torch.compile(model, backend="eager")):
        objective = make(0, chunk_size=4)
        for _ in range(2):  # the first step is checked
            torch.manual_seed(7)
            x, _ = objective.select(scored, *batch)
        winners.append(x)
    assert torch.equal(*winners)
    with pytest.raises(ValueError, match="use chunk_size=1"):
        MaxUp(Gaussian(1.0), norm="running", chunk_size=4).select(torch.compile(model, backend="eager"), *batch)


def test_images_of_96_pixels_are_scored_at_half_size():
    sizes = []
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[-1]))
    x, y = torch.randn(2, 1, 96, 96), torch.tensor([0, 2])
    objective = MaxUp(Gaussian(1.0), m=2, fast=True)
    objective.select(model, x, y)  # the first step is checked
    sizes.clear()
    objective(model, x, y)
    assert sizes == [48, 48, 96]


def test_a_loss_for_one_batch_size_is_scored_one_copy_at_a_time(batch):
    weight = torch.rand(16)

    def loss_fn(output, target):
        return F.cross_entropy(output, target, reduction="none") * weight

    model, exact = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), []
    for fast in (False, True):
        options = {"fast": True, "chunk_size": 4} if fast else {}  # as on a GPU
        objective = MaxUp(Gaussian(1.0), m=4, loss_fn=loss_fn, generator=torch.Generator().manual_seed(0), **options)
        exact.append([objective.select(model, *batch)[0] for _ in range(3)])
    assert all(map(torch.equal, *exact))


class Wide(nn.Module):
    """A network for images of more than 48 x 48 pixels."""

    def forward(self, x):
        if x.shape[-1] <= 48:
            raise ValueError("too small")
        return x.mean((2, 3))


def test_every_size_of_images_is_tried(recwarn):
    objective = MaxUp(Gaussian(1.0), m=2, fast=True)
    for size in (128, 96, 128, 96):
        objective.select(Wide(), torch.randn(4, 5, size, size), torch.arange(4))
    assert [str(w.message) for w in recwarn if w.category is MaxUpWarning] == [
        "fast=True scores images at full size, because half the size failed: too small"
    ]


def test_views_are_scored_twice_in_the_same_order():
    """The selection of a linear model is exact, so the check must find that it keeps the whole gap."""
    objective, model = MaxUp(Views(), m=3, fast=True), nn.Linear(12, 4)
    objective.select(model, torch.randn(16, 8, 12), torch.arange(16) % 4)
    assert objective.gap_kept == pytest.approx(1.0, abs=1e-5)


def test_noise_on_features_is_not_scored_at_half_size(monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 1)
    noise = FeatureNoise(1.0, layer="0")
    model = noise.attach(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 4)))
    objective = MaxUp(noise, m=4, fast=True)
    with objective.selected(model, torch.rand(16, 3, 96, 96), torch.arange(16) % 4):
        pass
    assert objective.gap_kept == pytest.approx(1.0, abs=1e-5)


def test_a_schedule_that_alternates_is_not_checked_in_every_step():
    objective = MaxUp(Gaussian(1.0), m=lambda step: 1 + 3 * (step % 2), fast=True)
    found = []
    for step in range(1010):
        objective.step = step
        if objective.needs_eager():
            found.append(step)
    assert found == [1]


def test_errors_that_are_not_about_the_size(model, batch, large):
    with pytest.raises(ValueError, match="labels range from 0 to 9"):
        make(0)(model, batch[0], torch.arange(16) % 10)


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        (torch.empty(1, 3, 96, 96), True),
        (torch.empty(1, 3, 96, 95), False),
        (torch.empty(1, 3, 96, 96, dtype=torch.uint8), False),
        (torch.empty(3, 96, 96), False),
        ({"pixel_values": torch.empty(1, 3, 96, 96)}, False),
    ],
)
def test_large_images(x, wanted):
    assert is_large(x) == wanted


def test_halve_crops_odd_sizes_and_keeps_the_memory_format():
    x = torch.randn(2, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    assert halve(x).shape == (2, 3, 4, 3)
    assert halve(x).is_contiguous(memory_format=torch.channels_last)


def test_some_steps_are_exact_and_measure_the_gap_kept(model, batch, monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 3)
    objective = make(0)
    assert objective.gap_kept is None
    for step in range(7):
        objective.generator.manual_seed(step)
        torch.manual_seed(7)
        before = copy.deepcopy(model)
        outcome = objective.run(model, *batch)
        exact, running, _ = reference(before, batch, 4, step)
        checked = step % 3 == 0
        assert torch.equal(outcome.worst.copy, (exact if checked else running).argmax(0))
        chosen = exact.gather(0, running.argmax(0)[None])[0]
        expected = float((chosen - exact.mean(0)).sum() / (exact.max(0).values - exact.mean(0)).sum())
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


def test_without_batch_norm_and_dropout_it_is_exact(model, batch):
    model[1], model[5] = nn.GroupNorm(2, 8), nn.Identity()
    for m in (3, 9):
        found = []
        for fast in (False, True):
            objective = MaxUp(Gaussian(1.0), m=m, fast=fast, generator=torch.Generator().manual_seed(0))
            copies = []
            for _ in range(3):
                torch.manual_seed(7)
                copies.append(objective.run(model, *batch).worst.copy)
            found.append(torch.stack(copies))
        assert torch.equal(*found)
        assert objective.gap_kept == pytest.approx(1.0)


def test_compiled_passes_score_several_copies_unless_dropout_stays_active(model, batch, monkeypatch):
    monkeypatch.setattr("maxup.scoring._inductor", lambda graph, inputs, config: graph)  # faster
    sizes = []

    def forward(model, x):
        sizes.append(len(x))
        return model(x)

    for scored, wide in ((model, True), (DropoutFunction(model), False)):
        objective = MaxUp(Gaussian(1.0), m=4, fast=True, chunk_size=4, compile=True, forward=forward)
        objective.step = 1  # the first step is checked
        objective(scored, *batch)
        sizes.clear()
        objective(scored, *batch)
        assert sizes == ([64, 16] if wide else [16] * 5)


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


def test_the_gap_is_that_of_the_scores(model, batch):
    """With score="kl" the worst copy is not the one with the highest loss. Selection is exact without these layers."""
    model[1] = model[5] = nn.Identity()
    objective = MaxUp(CutMix(num_classes=5), m=4, fast=True, score="kl")
    objective(model, *batch)
    assert objective.gap_kept == pytest.approx(1.0)


def test_share_of_gap_of_ties_is_nan():
    assert torch.isnan(share_of_gap([torch.ones(3), torch.ones(3)], torch.zeros(3, dtype=torch.long)))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"fast": "yes"}, TypeError, "fast='yes': fast must be True or False"),
        (
            {"fast": True, "strategy": "retain"},
            ValueError,
            "fast=True needs strategy='recompute'",
        ),
    ],
)
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=message):
        MaxUp(Gaussian(1.0), **settings)


def test_without_a_compiler_copies_are_scored_eagerly(monkeypatch):
    """With a batch that looks as if it were on a GPU, where `fast` compiles."""

    def fail(self, model, *, dropout):
        raise RuntimeError("Cannot find a working triton installation")

    monkeypatch.setattr("maxup.objectives.fast_scoring.device_of", lambda batch: torch.device("cuda"))
    monkeypatch.setattr("maxup.scoring.ScoringCompiler.compile", fail)
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 3), torch.randn(6, 5), torch.randint(3, (6,))
    objective, exact = (
        MaxUp(Gaussian(0.5), m=4, fast=fast, generator=torch.Generator().manual_seed(1)) for fast in (True, False)
    )
    with pytest.warns(MaxUpWarning, match="without compiling, because compiling failed: Cannot find"):
        chosen = [objective.select(model, x, y)[0]]
    chosen.append(objective.select(model, x, y)[0])  # no second warning, which would be an error
    torch.testing.assert_close(chosen, [exact.select(model, x, y)[0] for _ in range(2)])
    with pytest.raises(RuntimeError, match="Cannot find a working triton"):
        MaxUp(Gaussian(0.5), m=4, fast=True, compile=True).select(model, x, y)


def test_without_a_compiler_images_of_any_size_are_scored_at_half_their_size(monkeypatch):
    monkeypatch.setattr("maxup.objectives.fast_scoring.device_of", lambda batch: torch.device("cuda"))
    tried = []

    def score(how):
        tried.append((how.half, how.compile))
        if how.compile:
            raise RuntimeError("Cannot find a working triton installation")
        return RunningMax()

    scoring, settings = FastScoring(), {"chunk_size": 1, "compile": False, "may_halve": True}
    with pytest.warns(MaxUpWarning, match="without compiling, because compiling failed: Cannot find") as found:
        scoring.score(score, nn.Linear(1, 1), (torch.rand(2, 3, 128, 128), None), lambda: None, **settings)
    scoring.score(score, nn.Linear(1, 1), (torch.rand(2, 3, 160, 160), None), lambda: None, **settings)
    assert tried == [(True, True), (True, True), (True, False), (True, False)]  # with 4 copies per pass, and with 1
    assert len(found) == 1


@pytest.mark.parametrize("error", [IndexError, TypeError])
def test_a_model_that_raises_any_error_at_half_the_size_is_scored_at_full_size(error):
    def score(how):
        if how.half:
            raise error("too small")
        return RunningMax()

    with pytest.warns(MaxUpWarning, match="at full size, because half the size failed"):
        FastScoring().score(
            score, nn.Linear(1, 1), (torch.rand(2, 3, 128, 128), None), lambda: None, chunk_size=1, compile=False,
            may_halve=True,
        )  # fmt: skip


class Wrapper(nn.Module):
    def __init__(self, compile):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        if compile == "part":
            self.layer.compile()
        if compile == "whole":
            self.compile()

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(("compile", "compiles"), [("no", True), ("part", False), ("whole", True)])
def test_on_a_gpu_a_network_of_which_parts_are_compiled_is_scored_as_it_is(monkeypatch, compile, compiles):
    monkeypatch.setattr("maxup.objectives.fast_scoring.device_of", lambda batch: torch.device("cuda"))
    tried = []

    def score(how):
        tried.append(how)
        return RunningMax()

    batch = torch.rand(2, 4), torch.zeros(2, dtype=torch.long)
    FastScoring().score(score, Wrapper(compile), batch, None, chunk_size=1, compile=False, may_halve=True)
    assert [(how.chunk_size, how.compile) for how in tried] == [(4, compiles)]

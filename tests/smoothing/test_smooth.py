import math

import pytest
import torch
from torch import nn

from maxup.smoothing.smooth import ABSTAIN, Smooth

SIGMA = 0.5


def linear(dimensions=5, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(dimensions, classes)).requires_grad_(False)


def distance(model, x):
    """Distance from x to the decision boundary of a linear two-class classifier."""
    w, b = model[1].weight[0] - model[1].weight[1], model[1].bias[0] - model[1].bias[1]
    return float((x @ w + b).abs() / w.norm())


def test_the_radius_of_a_linear_classifier_converges_to_its_distance():
    """Smoothing does not change a linear classifier: p = Phi(distance / sigma), so the radius is the distance."""
    model, x = linear(classes=2), torch.tensor([1.5, -0.9, 0.6, 0.3, -1.2])
    exact, errors = distance(model, x), []
    assert 0.1 < exact < 1
    for n in (1000, 10_000, 100_000):
        label, radius = Smooth(model, 2, SIGMA).certify(x, 100, n, 0.001, 1000)
        assert label == int(model(x[None]).argmax())
        errors.append(exact - radius)
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[-1] < 0.01


def test_adaptive_sampling_agrees_and_needs_fewer_samples():
    model = linear(classes=2)
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    smooth = Smooth(model, 2, SIGMA)
    fixed = list(smooth.certify_many(x, 100, 20_000, 0.001, 1000, indices=range(40)))
    cheap = list(smooth.certify_many(x, 100, 20_000, 0.001, 1000, indices=range(40), adaptive=True, radii=[0.25, 1.0]))
    assert sum(c.samples for c in cheap) < 0.5 * sum(c.samples for c in fixed)
    for a, b, image in zip(fixed, cheap, x, strict=True):
        exact = distance(model, image)
        assert max(a.radius, b.radius) < exact
        for radius in (0.25, 1.0):
            if abs(exact - radius) > 0.05:
                assert (a.radius >= radius) == (b.radius >= radius)


@pytest.mark.parametrize("together", [1, 3, 16])
def test_results_do_not_depend_on_the_batch_size_or_the_other_images(monkeypatch, together):
    model, x = linear(), torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    alone = [Smooth(model, 3, SIGMA).certify_many(x[i : i + 1], 50, 777, 0.01, 100, indices=[i]) for i in range(7)]
    expected = [(c.predict, c.radius) for certificates in alone for c in certificates]
    monkeypatch.setattr("maxup.smoothing.smooth.TOGETHER", together)
    found = [(c.predict, c.radius) for c in Smooth(model, 3, SIGMA).certify_many(x, 50, 777, 0.01, 64)]
    assert found == expected
    assert len({radius for _, radius in found}) > 3


def test_each_call_draws_new_noise():
    smooth, x = Smooth(linear(), 3, SIGMA), torch.zeros(5)
    assert len({smooth.certify(x + 0.1, 50, 777, 0.5, 100) for _ in range(5)}) > 1
    again = Smooth(linear(), 3, SIGMA)
    first = [again.certify(x + 0.1, 50, 777, 0.5, 100) for _ in range(2)]
    assert first == [(c.predict, c.radius) for c in Smooth(linear(), 3, SIGMA).certify_many(
        (x + 0.1).expand(2, 5), 50, 777, 0.5, 100)]  # fmt: skip


def test_abstentions_are_minus_one():
    model = nn.Flatten()
    assert Smooth(model, 2, SIGMA).certify(torch.zeros(2), 100, 1000, 0.001, 100) == (-1, 0.0)
    assert Smooth(model, 2, SIGMA).predict(torch.zeros(2), 100, 0.001, 100) == Smooth.ABSTAIN == ABSTAIN == -1
    assert Smooth(model, 2, SIGMA).predict(torch.tensor([0.0, 2.0]), 100, 0.001, 100) == 1


def test_counts():
    counts = Smooth(nn.Flatten(), 3, SIGMA).counts(torch.tensor([0.4, 0.0, -9.0]), 500, 64)
    assert sum(counts) == 500
    assert counts[0] > counts[1] > counts[2] == 0


def test_a_bf16_certificate_holds_for_the_bf16_classifier():
    """In float32 class 1 always wins. bfloat16 rounds the margin away, so the classes tie and the first wins."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)).requires_grad_(False)
    model[1].weight.copy_(torch.tensor([[1.0, 0.0], [1.0001, 0.0]]))
    x = torch.tensor([9.0, 0.0])
    assert Smooth(model, 2, 0.1).certify(x, 10, 100, 0.01, 100)[0] == 1
    assert Smooth(model, 2, 0.1, dtype=torch.bfloat16).certify(x, 10, 100, 0.01, 100)[0] == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Smooth(linear(), 3, 0.0), "sigma=0.0: sigma must be a finite number above 0"),
        (lambda: Smooth(linear(), 3, -1), "sigma=-1"),
        (lambda: Smooth(linear(), 3, math.nan), "sigma=nan"),
        (lambda: Smooth(linear(), 1, 0.5), "num_classes must be 2 or more"),
        (lambda: Smooth(3, 3, 0.5), "an int is not a classifier"),
        (lambda: Smooth(linear(), 3, 0.5, dtype=torch.int8), "dtype=torch.int8"),
        (lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(5), 100, 99, 0.001, 10), "n=99 is below n0=100"),
        (lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(5), 0, 99, 0.001, 10), "n0=0"),
        (lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(5), 1, 9, 1.0, 10), r"alpha=1\.0"),
        (lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(5), 1, 9, 0.1, 0), "batch_size=0"),
        (lambda: Smooth(linear(), 3, 0.5).predict(torch.zeros(5).long(), 9, 0.1, 10), "x is torch.int64"),
        (lambda: Smooth(linear(), 4, 0.5).predict(torch.zeros(5), 9, 0.1, 10), r"it must return logits \(10, 4\)"),
        (
            lambda: Smooth(linear(), 3, 0.5).certify_many(torch.zeros(2, 5), 1, 9, 0.1, 10, indices=[1]),
            "got 1 indices for 2 images; pass one per image",
        ),
        (
            lambda: Smooth(linear(), 3, 0.5).certify_many(torch.zeros(2, 5), 1, 9, 0.1, 10, radii=[1.0]),
            "needs adaptive=True",
        ),
        (
            lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(5).numpy(), 1, 9, 0.1, 10),
            "x is a ndarray; pass a tensor",
        ),
        (lambda: Smooth(linear(), 3, 0.5).predict([0.0], 9, 0.1, 10), "x is a list; pass a tensor"),
        (
            lambda: Smooth(linear(), 3, 0.5).certify(torch.zeros(2, 3, 8, 8), 1, 9, 0.1, 10),
            r"x has shape \(2, 3, 8, 8\); pass one image \(C, H, W\), or use certify_many for several",
        ),
        *(
            (
                lambda radii=radii: Smooth(linear(), 3, 0.5).certify_many(
                    torch.zeros(2, 5), 1, 9, 0.1, 10, adaptive=True, radii=radii
                ),
                "radii=.*: radii must be a non-empty list of finite numbers, 0 or more",
            )
            for radii in ([], [math.nan], [math.inf], [0.5, -1], ["0.5"], 0.5, "0.5")
        ),
    ],
)
def test_invalid_input_is_refused(build, message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [{"sigma": 1.0}, {"seed": 5}, {"dtype": torch.bfloat16}, {"base_classifier": None}])
def test_a_setting_that_changes_between_calls_takes_effect(changes):
    """Otherwise the noise has the old sigma, and the radius the new one: the certificate is wrong."""
    line, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    line.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    other.weight.data.copy_(-line.weight)
    if "base_classifier" in changes:
        changes = {"base_classifier": other}
    smooth, x = Smooth(line, num_classes=2, sigma=0.1), torch.tensor([0.2, 0.0])
    smooth.counts(x, 1000, 1000)
    for name, value in changes.items():
        setattr(smooth, name, value)
    fresh = Smooth(**{"base_classifier": line, "num_classes": 2, "sigma": 0.1} | changes)
    assert smooth.counts(x, 1000, 1000) == fresh.counts(x, 1000, 1000)
    _, radius = smooth.certify(x, n0=100, n=10_000, alpha=0.001, batch_size=1000)
    assert radius < 0.2  # the distance to the boundary

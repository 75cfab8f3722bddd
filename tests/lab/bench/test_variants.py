"""The gradient of every variant against a hand-written loop on the same draws."""

import copy

import pytest
import torch
from torch import Generator, nn
from torch.nn import functional as F

from maxup import Gaussian
from maxup.errors import RecipeError
from maxup.lab.bench.settings import BY_M, DEFAULT, MAXUP, NAMES
from maxup.lab.bench.variants import RHO, make_variants
from maxup.lab.bench.workload import from_setup

M, B = 3, 8


@pytest.fixture
def work():
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    returned = model, (torch.randn(B, 6).double(), torch.randint(3, (B,))), None, Gaussian(0.5)
    return from_setup("mine:setup", returned, device=torch.device("cpu"))


def copies(work, m):
    """The copies that a variant draws."""
    g, (x, y) = Generator().manual_seed(0), work.batches(0)
    return [Gaussian(0.5)(x, y, generator=g)[0] for _ in range(m)], y


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def worst(work):
    xs, y = copies(work, M)
    losses = torch.stack([F.cross_entropy(work.model(x), y, reduction="none") for x in xs])  # (M, B)
    return gradients(work.model, losses.max(0).values.mean())


def average(work):
    xs, y = copies(work, M)
    return gradients(work.model, sum(F.cross_entropy(work.model(x), y) for x in xs) / M)


def standard(work):
    (x,), y = copies(work, 1)
    return gradients(work.model, F.cross_entropy(work.model(x), y))


def sam(work):
    (x,), y = copies(work, 1)
    moved = copy.deepcopy(work.model)
    ascent = standard(work)
    norm = torch.cat([g.flatten() for g in ascent]).norm()
    with torch.no_grad():
        for weight, g in zip(moved.parameters(), ascent, strict=True):
            weight += RHO * g / norm
    return gradients(moved, F.cross_entropy(moved(x), y))


TRUTH = {"standard": standard, "average": average, "sam": sam, "keep_all_graphs": worst, **dict.fromkeys(MAXUP, worst)}


ON_A_CPU = [name for name in TRUTH if not name.endswith("_captured")]
SLOW = "maxup_compiled", "maxup_compiled_wide"  # tests/test_scoring.py compares compiled with eager scoring


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in ON_A_CPU])
def test_gradient(name, work):
    (variant,) = [v for v in make_variants(work, NAMES, [M]) if v.name == name]
    variant.backward(work.batches(0))
    for weight, expected in zip(work.model.parameters(), TRUTH[name](work), strict=True):
        torch.testing.assert_close(weight.grad, expected)


def test_pgd_raises_the_loss(work):
    plain, attack = make_variants(work, ["pgd7"], [])
    batch = work.batches(0)
    assert attack.backward(batch) > plain.backward(batch)


def test_names_and_order(work):
    keys = [variant.key for variant in make_variants(work, DEFAULT, [2, 4])]
    by_m = [name for name in DEFAULT if name in BY_M]
    expected = [f"{name}, m = {m}" for m in (2, 4) for name in by_m]
    assert keys == ["standard, m = 1", *expected, "pgd7", "sam"]
    assert set(DEFAULT) <= set(NAMES)


def test_unknown_name(work):
    with pytest.raises(RecipeError, match="variant 'maxupp' is unknown; did you mean 'maxup'"):
        make_variants(work, ["maxupp"], [2])

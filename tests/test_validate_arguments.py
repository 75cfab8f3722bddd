"""Any value of a perturbation's argument gives a one-sentence error or a perturbation that works."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import maxup as mu
from maxup.cli.main import user_message
from maxup.errors import RecipeError
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.registry import PERTURBATIONS, get_parameters
from maxup.validate import ABOVE_0, BELOW_1, MANY, check_int, check_real

NEEDED = {
    "gaussian": {"sigma": 0.1},
    "uniform_ball": {"radius": 0.1},
    "cutout": {"length": 2},
    "rand_augment": {"magnitude": 1},
    "label_noise": {"epsilon": 0.1},
    "feature_noise": {"sigma": 0.1, "layer": "1"},
    "manifold_mixup": {"layers": ["1"]},
}
STRANGE = [
    *("abc", "", [1, 2], ["a"], [], {}, {"a": 1}, None, True, False, -1, 0, 1.5, 3, 10**30, 10**400, [[1]], [math.nan]),
    *(math.nan, math.inf, -math.inf),
]
ARGUMENTS = [
    (name, argument)
    for name in PERTURBATIONS
    for argument in get_parameters(PERTURBATIONS, "perturbation", name)
    if argument != "key"  # recipes refuse it
]


def attempt(spec):
    """Return the batch that a recipe's perturbation returns, or its error."""
    x, y = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    try:
        made = build_perturbation([spec], 3, mean=(0.5,) * 3, std=(0.2,) * 3)
        if hasattr(made, "attach"):
            made.attach(net)
        changed = made(x, y, generator=torch.Generator().manual_seed(0))
        net(changed[0])
    except (ValueError, TypeError) as error:
        return error
    return changed


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_any_value_raises_a_message_or_works(name, argument):
    for value in STRANGE:
        found = attempt({"name": name, **NEEDED.get(name, {}), argument: value})
        if isinstance(found, Exception):
            assert user_message(found), (value, found)
            assert "\n" not in str(found)
            if isinstance(found, RecipeError) and found.__cause__:  # our message, not Python's
                assert not isinstance(found.__cause__, TypeError), found
                assert argument in str(found.__cause__)
        else:
            assert isinstance(value, int | float | None) or argument in ("mean", "std"), value
            assert all(part.isfinite().all() for part in found), value


def test_bounds():
    assert check_real("A", "p", 0, "", 0, BELOW_1) == 0
    for value in (1, 1.0, -0.1, math.nan, True, "0.5", 10**400, 10**5000):
        with pytest.raises(ValueError, match=r"^A\(p=.*\): p must be below$"):
            check_real("A", "p", value, "below", 0, BELOW_1)
    with pytest.raises(ValueError, match="alpha must be above"):
        check_real("A", "alpha", 0.0, "above", ABOVE_0)
    assert check_int("A", "n", MANY, 1) == MANY
    with pytest.raises(ValueError, match=r"^A\(n=1000001\): n must be a whole number, 1 to 1000000$"):
        check_int("A", "n", MANY + 1, 1)
    with pytest.raises(ValueError, match=r"^A\(n=an integer of 16610 bits\): n must be"):  # too long for repr
        check_int("A", "n", 10**5000, 1)
    with pytest.raises(ValueError, match=r"^A\(n=2\.0\): n must be a whole number of pixels, 1 or more$"):
        check_int("A", "n", 2.0, 1, " of pixels")


def test_numpy_numbers_are_accepted():
    """The number of classes is often labels.max() + 1."""
    assert mu.CutMix(num_classes=np.arange(10).max() + 1).num_classes == 10
    assert mu.Cutout(np.int32(8)).length == 8
    assert mu.Gaussian(np.float32(0.5)).sigma == 0.5

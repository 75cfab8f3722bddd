"""When a CUDA graph must be captured again."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from maxup import Gaussian, MaxUp
from maxup.objectives.settings import settings

WEIGHT, OPTIONS = 1.0, {"scale": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        lambda thing: setattr(thing, "rate", 2),
        lambda thing: thing.rates.append(2),
        lambda thing: thing.named.update(rate=2),
        lambda thing: thing.named["inner"].update(rate=2),
        lambda thing: thing.named["rates"].append(2),
        lambda thing: setattr(thing, "tensor", torch.ones(1)),
    ],
)
def test_they_differ_after_a_change_in_place(change):
    thing = SimpleNamespace(rate=1, rates=[1], named={"rate": 1, "inner": {"rate": 1}, "rates": [1]}, tensor=None)
    before = settings(thing)
    assert settings(thing) == before
    change(thing)
    assert settings(thing) != before


def test_they_leave_out_what_a_step_changes():
    thing = SimpleNamespace(step=1, generator=torch.Generator(), _cache={"a": 1})
    before = settings(thing)
    thing.step, thing.generator, thing._cache["a"] = 2, None, 2
    assert settings(thing) == before


def test_they_include_private_numbers_of_your_classes_only():
    class Mine:
        def __init__(self):
            self._sigma, self._weights, self._cache = 0.1, torch.ones(2), {}

    thing, ours = Mine(), MaxUp(Gaussian(0.1))
    before = settings(thing)
    thing._cache["a"] = 1
    assert settings(thing) == before
    thing._sigma = 0.2
    assert settings(thing) != before
    before, thing._weights = settings(thing), torch.ones(2)
    assert settings(thing) != before
    before, ours._first_batch = settings(ours), False
    assert settings(ours) == before


def test_they_include_what_a_function_reads(monkeypatch):
    rates = [1.0]

    def loss_fn(output, target):
        return output * rates[0] * WEIGHT * OPTIONS["scale"]

    objective = MaxUp(Gaussian(0.1), loss_fn=loss_fn)
    before = settings(objective)
    assert settings(objective) == before
    rates[0] = 2.0
    assert settings(objective) != before
    before = settings(objective)
    monkeypatch.setitem(OPTIONS, "scale", 2.0)
    assert settings(objective) != before
    before = settings(objective)
    monkeypatch.setattr(f"{__name__}.WEIGHT", 2.0)
    assert settings(objective) != before


def test_another_function_at_the_same_address_differs():
    objective, places = MaxUp(Gaussian(0.1)), []
    for _ in range(20):
        objective.loss_fn = eval("lambda output, target: output")
        places.append(settings(objective))
    assert not any(a == b for a, b in itertools.pairwise(places))

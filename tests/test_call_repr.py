"""The repr of every perturbation and objective is a call that recreates it."""

import copy
import inspect
import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import maxup as mu
from tests.tiny import CLASSES, batch, net

CLASSES_OF = {
    name: getattr(mu, name)
    for name in mu.__all__
    if inspect.isclass(getattr(mu, name)) and issubclass(getattr(mu, name), mu.Perturbation | mu.Objective)
}
SCOPE = {name: getattr(mu, name) for name in mu.__all__} | {"math": math, "torch": torch}


def sine(x):
    return x.sin()


SCOPE["sine"] = sine
fractions = st.floats(0.01, 0.9)
perturbations = st.sampled_from([mu.Gaussian(0.1), mu.Compose(mu.Cutout(3), mu.CropFlip(2, fill=0.5))])
channels = fractions | st.lists(fractions, min_size=3, max_size=3).map(tuple)
VALUES = {
    "perturbation": perturbations, "m": st.integers(1, 9), "key": st.sampled_from([None, "pixels", 0]),
    "sigma": fractions, "radius": fractions, "length": st.integers(1, 9), "fill": fractions,
    "padding": st.integers(0, 9), "flip": st.booleans(), "num_classes": st.integers(2, 9), "alpha": fractions,
    "degrees": fractions,
    "translate": fractions, "num_ops": st.integers(1, 3), "magnitude": st.integers(0, 5), "bins": st.integers(10, 31),
    "mean": channels, "std": channels, "policy": st.sampled_from(["imagenet", "cifar10"]), "brightness": fractions,
    "contrast": fractions, "saturation": fractions, "epsilon": fractions, "concentration": fractions,
    "layer": st.sampled_from(["0", "features.1"]), "layers": st.just(["input", "0"]), "transform": st.just(sine),
    "batched": st.booleans(), "labels": st.booleans(), "keep": fractions, "samples": st.integers(1, 4),
    "steps": st.integers(1, 4), "step_size": fractions, "attack": st.sampled_from(["pgd", "ddn"]),
    "clip": st.sampled_from([None, (0.0, 2.0)]), "norm": st.sampled_from(["batch", "running"]),
    "chunk_size": st.integers(1, 3), "dtype": st.sampled_from([None, torch.bfloat16]), "forward": st.just(sine),
    "loss_fn": st.just(mu.token_cross_entropy), "generator": st.none(),
    "p": st.sampled_from([2, math.inf]),
}  # fmt: skip
ONLY = {
    "EmbeddingDropout.p": fractions, "EmbeddingDropout.keep": st.just((0, 2)), "TokenDropout.p": fractions,
    "TokenDropout.mask_id": st.integers(0, 9), "TokenDropout.keep": st.just((0, 2)),
    "MaxUp.score": st.just("loss"), "MaxUp.strategy": st.just("recompute"),
    "Compose.perturbations": st.lists(perturbations, min_size=1, max_size=3),
}  # fmt: skip


@st.composite
def calls(draw, name):
    """Draw arguments of a constructor: the required ones, and some of the others."""
    positional, keywords = [], {}
    for argument, parameter in inspect.signature(CLASSES_OF[name]).parameters.items():
        values = ONLY.get(f"{name}.{argument}", VALUES.get(argument))
        if values is None:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += draw(values)
        elif parameter.default is parameter.empty or draw(st.booleans()):
            keywords[argument] = draw(values)
    return positional, keywords


def same(one, other):
    """Whether values are equal. One number for all channels may become a tuple; objects are compared by repr."""
    return one == other or (one,) == other or repr(one) == repr(other)


@pytest.mark.parametrize("name", CLASSES_OF)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_repr_recreates_the_object(name, data):
    cls = CLASSES_OF[name]
    positional, keywords = data.draw(calls(name))
    thing = cls(*positional, **keywords)
    shown = repr(thing)
    assert "\n" not in shown
    assert repr(eval(shown, dict(SCOPE))) == shown
    # The call has the same arguments: bind them instead of creating the object.
    expected = inspect.signature(cls).bind(*positional, **keywords)
    actual = eval(shown, SCOPE | {cls.__name__: lambda *a, **k: inspect.signature(cls).bind(*a, **k)})
    for bound in (expected, actual):
        bound.apply_defaults()
    if name == "Compose":  # flattens nested ones
        assert repr(mu.Compose(*actual.args)) == repr(mu.Compose(*expected.args))
        return
    if name == "Adversarial" and expected.arguments["step_size"] is None:  # the default depends on the radius
        del expected.arguments["step_size"]
    assert all(same(value, actual.arguments[argument]) for argument, value in expected.arguments.items()), shown


@pytest.mark.parametrize("name", CLASSES_OF)
@settings(max_examples=1)
@given(data=st.data())
def test_every_argument_is_an_attribute(name, data):
    """Otherwise the repr cannot show it."""
    positional, keywords = data.draw(calls(name))
    thing = CLASSES_OF[name](*positional, **keywords)
    missing = [argument for argument in inspect.signature(CLASSES_OF[name]).parameters if not hasattr(thing, argument)]
    assert not missing


def test_it_reads_well():
    assert repr(mu.MaxUp(mu.CutMix(num_classes=10), m=4)) == "MaxUp(CutMix(num_classes=10), m=4)"
    assert repr(mu.Compose(mu.Cutout(8), mu.Gaussian(0.1))) == "Compose(Cutout(8), Gaussian(0.1))"
    assert repr(mu.UniformBall(1, p=math.inf)) == "UniformBall(1.0, p=math.inf)"
    assert repr(mu.MaxUp(mu.Views(), m=2, loss_fn=lambda o, t: o)) == "MaxUp(Views(), m=2, loss_fn=<lambda>)"
    assert repr(mu.Transform(nn.Sequential(nn.ReLU()))) == "Transform(Sequential(...))"
    assert repr(mu.MaxUp(mu.Gaussian(1), partial(min, 3))) == "MaxUp(Gaussian(1.0), m=partial(min, 3))"


def test_it_follows_the_attributes():
    gaussian = mu.Gaussian(0.1)
    gaussian.sigma = 0.2
    assert repr(gaussian) == "Gaussian(0.2)"
    for clone in (copy.deepcopy(gaussian), pickle.loads(pickle.dumps(gaussian))):
        assert repr(clone) == "Gaussian(0.2)"


def test_a_step_does_not_change_it():
    """A generator that an objective creates is not one of its arguments; one that was passed is."""
    for objective in (mu.MaxUp(mu.Gaussian(0.1)), mu.MaxUp(mu.Gaussian(0.1), generator=torch.Generator())):
        before = repr(objective)
        objective(net(), *batch())
        assert repr(objective) == before
    assert before == "MaxUp(Gaussian(0.1), m=4, generator=torch.Generator('cpu'))"


def test_custom_classes():
    class Brightness(mu.Perturbation):
        def __init__(self, strength, *, floor=0.0, **more):
            self.strength = strength

    class Renamed(mu.Perturbation):
        def __init__(self, strength, *, floor):
            self.power = strength

    class ByHand:
        def __init__(self, strength=2):
            self.strength = strength

        draw = apply = lambda self, *args: None

    assert repr(Brightness(3, floor=0.5)) == "Brightness(3)"  # floor was not stored
    assert repr(Renamed(3, floor=1)) == "Renamed(..., floor=...)"
    assert repr(mu.Average(ByHand(3), m=CLASSES)) == "Average(ByHand(strength=3), m=4)"

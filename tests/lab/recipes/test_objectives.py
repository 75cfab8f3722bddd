"""The arguments of the objectives in recipes: their types, defaults and ranges."""

import inspect
from typing import Annotated, Literal, get_args, get_origin

import pytest

from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.objectives.adversarial import Adversarial
from maxup.objectives.average import Average
from maxup.objectives.hard_examples import HardExamples
from maxup.objectives.maxup import MaxUp
from maxup.objectives.smoothadv import SmoothAdv

CLASSES = {
    "maxup": MaxUp, "average": Average, "adversarial": Adversarial, "hard_examples": HardExamples,
    "smoothadv": SmoothAdv,
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_those_of_the_class_with_its_defaults(name):
    """All are arguments of the class, except for the warmup, the start and the unit of text."""
    taken = inspect.signature(CLASSES[name]).parameters
    for key, argument in arguments_of(name).items():
        if key in ("warmup", "start", "unit"):
            continue
        assert key in taken
        if taken[key].default is not inspect.Parameter.empty and name not in ("smoothadv", "adversarial"):
            assert argument.default == taken[key].default, key


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_argument_is_documented_and_has_a_checked_type(name):
    for key, argument in arguments_of(name).items():
        assert f"        {key}: " in OBJECTIVES[name].__doc__
        hint = argument.annotation
        if argument.default is None:
            hint, optional = get_args(hint)
            assert (get_origin(hint), optional) == (Annotated, type(None)), key
            continue
        assert get_origin(hint) in (Annotated, Literal) or hint is bool, key
        if get_origin(hint) is Annotated:
            assert argument.default in get_args(hint)[1]

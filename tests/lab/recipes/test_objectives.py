"""Objectives in recipes: names, arguments with types, defaults and ranges."""

import inspect
from typing import Annotated, Literal, get_args, get_origin

import pytest

from maxup.errors import RecipeError
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of, override_objective, resolve_objective
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


def test_defaults_are_filled_in():
    assert resolve_objective("average") == {"name": "average", "m": 4, "warmup": 5, "start": 0.0}
    assert resolve_objective({"name": "adversarial", "p": ".inf"[1:]})["p"] == float("inf")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3, r"objective must be \{name: \.\.\., arguments\}, but is 3"),
        ({"m": 4}, r"objective must be \{name: \.\.\., arguments\}"),
        ("maxap", "objective 'maxap' is unknown; did you mean 'maxup'"),
        ({"name": "maxup", "radius": 1}, "argument of objective 'maxup' 'radius' is unknown"),
        ({"name": "maxup", "m": True}, r"objective\.m must be a whole number, but is True"),
        ({"name": "maxup", "m": 2.5}, r"objective\.m must be a whole number, but is 2\.5"),
        ({"name": "maxup", "m": 0}, r"objective\.m=0 is out of range; it must be a whole number from 1 to 10000"),
        ({"name": "maxup", "norm": None}, r"objective\.norm 'None' is unknown; known: batch, running"),
        ({"name": "adversarial", "p": 3}, r"objective\.p=3\.0 is out of range; it must be 2 or inf"),
        ({"name": "adversarial", "radius": float("nan")}, r"objective\.radius=nan is out of range"),
    ],
)
def test_an_invalid_objective_gets_a_message(spec, message):
    with pytest.raises(RecipeError, match=message):
        resolve_objective(spec)


def test_an_override_names_the_objective_that_has_the_argument():
    with pytest.raises(RecipeError, match=r"--objective\.m has no effect.* add --objective\.name maxup$"):
        override_objective({"name": "standard"}, {"m": 4})

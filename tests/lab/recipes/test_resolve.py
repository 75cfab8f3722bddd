"""The objective of a recipe is checked, gets its defaults, and can be changed by options."""

import pytest

from maxup.errors import RecipeError
from maxup.lab.recipes.resolve import override_objective, resolve_objective


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

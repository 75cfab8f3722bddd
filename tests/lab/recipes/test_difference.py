import json
from dataclasses import asdict

import pytest

from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import flat, parse_recipe
from maxup.lab.recipes.schema import Recipe

MAXUP = "digits/mlp-gaussian-maxup"


def test_a_recipe_does_not_differ_from_itself():
    recipe = parse_recipe(MAXUP, [])
    assert difference(json.loads(json.dumps(asdict(recipe))), recipe, ignore=()) == []
    assert difference(asdict(parse_recipe(MAXUP, ["--model.args.hidden", "[3]"])), recipe) == ["model.args"]


@pytest.mark.parametrize("name", ["optim.lr", "data.workers", "epochs"])
def test_a_setting_that_the_record_lacks_has_its_default(name):
    said = asdict(Recipe())
    section, _, key = name.rpartition(".")
    del (said[section] if section else said)[key]
    assert difference(said, Recipe()) == []
    changed = Recipe()
    setattr(getattr(changed, section) if section else changed, key, flat(asdict(Recipe()))[name] + 1)
    assert difference(said, changed) == [name]
    assert difference(said, changed, ignore=[name]) == []


def test_arguments_of_the_objective_that_the_record_lacks_have_their_defaults():
    recipe = parse_recipe(MAXUP, [])
    said = asdict(recipe)
    said["objective"] = {"name": "maxup", "m": 4, "warmup": 0}
    assert difference(said, recipe) == []
    assert difference(said, parse_recipe(MAXUP, ["--objective.m", "8"])) == ["objective.m"]
    assert "objective.name" in difference(said, parse_recipe(MAXUP, ["--objective.name", "average"]))

import json
from dataclasses import asdict

import pytest

from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.recipes.schema import Recipe, flat

MAXUP = "digits/mlp-gaussian-maxup"


def test_a_recipe_does_not_differ_from_itself():
    recipe = parse_recipe(MAXUP, [])
    assert difference(json.loads(json.dumps(asdict(recipe))), recipe, ignore=()) == []
    assert difference(asdict(parse_recipe(MAXUP, ["--model.args.hidden", "[3]"])), recipe) == ["model.args"]


@pytest.mark.parametrize("name", ["optim.lr", "data.workers", "epochs"])
def test_a_setting_missing_from_the_record_has_its_default(name):
    record = asdict(Recipe())
    section, _, key = name.rpartition(".")
    del (record[section] if section else record)[key]
    assert difference(record, Recipe()) == []
    changed = Recipe()
    setattr(getattr(changed, section) if section else changed, key, flat(asdict(Recipe()))[name] + 1)
    assert difference(record, changed) == [name]
    assert difference(record, changed, ignore=[name]) == []


def test_missing_arguments_of_the_objective_have_their_defaults():
    recipe = parse_recipe(MAXUP, [])
    record = asdict(recipe)
    record["objective"] = {"name": "maxup", "m": 4, "warmup": 0}
    assert difference(record, recipe) == []
    assert difference(record, parse_recipe(MAXUP, ["--objective.m", "8"])) == ["objective.m"]
    assert "objective.name" in difference(record, parse_recipe(MAXUP, ["--objective.name", "average"]))

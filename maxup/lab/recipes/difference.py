"""Where a run's record of its recipe and a recipe differ."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from maxup.lab.recipes.load import flat
from maxup.lab.recipes.objectives import resolve_objective
from maxup.lab.recipes.schema import Recipe
from maxup.lab.upgrade import upgrade_recipe


def difference(said: Mapping[str, Any], recipe: Recipe, *, ignore: Collection[str] = ("data.root",)) -> list[str]:
    """The dotted names of the settings that differ. A setting that the record lacks has today's default.

    Args:
        said: The record, which an older version may have written.
        recipe: The recipe of today.
        ignore: Settings that may differ; by default, the place of the data.

    Example:
        >>> difference({"epochs": 3, "optim": {"lr": 0.2}}, Recipe(epochs=4))
        ['optim.lr', 'epochs']
    """
    record = upgrade_recipe(json.loads(json.dumps(said)))
    record["objective"] = resolve_objective(record.get("objective", "standard"))
    mine, theirs, default = flat(json.loads(json.dumps(asdict(recipe)))), flat(record), flat(asdict(Recipe()))
    return [key for key in mine if key not in ignore and theirs.get(key, default.get(key)) != mine[key]]

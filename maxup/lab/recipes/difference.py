"""Where a run's record of its recipe and a recipe differ."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from maxup.lab.recipes.load import flat
from maxup.lab.recipes.schema import Recipe


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
    mine, theirs, default = (flat(json.loads(json.dumps(one))) for one in (asdict(recipe), said, asdict(Recipe())))
    return [key for key in mine if key not in ignore and theirs.get(key, default[key]) != mine[key]]

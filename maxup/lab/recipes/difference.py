"""Compare the recorded recipe of a run with a recipe."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from maxup.lab.recipes.resolve import resolve_objective
from maxup.lab.recipes.schema import Recipe, flat
from maxup.lab.upgrade import upgrade_recipe


def difference(record: Mapping[str, Any], recipe: Recipe, *, ignore: Collection[str] = ("data.root",)) -> list[str]:
    """Return the dotted names of the settings that differ. A setting missing from the record has its default.

    Args:
        record: The recorded recipe. An older version may have written it.
        recipe: The recipe to compare with.
        ignore: Settings that may differ. Default: the folder of the data.
    """
    old = upgrade_recipe(json.loads(json.dumps(record)))
    old["objective"] = resolve_objective(old.get("objective", "standard"))
    before, now, default = flat(old), flat(json.loads(json.dumps(asdict(recipe)))), flat(asdict(Recipe()))
    return [key for key in now if key not in ignore and before.get(key, default.get(key)) != now[key]]

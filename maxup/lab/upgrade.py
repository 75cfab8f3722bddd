"""Upgrade recipes recorded by older versions: runs, result files and exported models stay readable.

This module imports nothing from the package, so that models, recipes and results can all use it.
"""

from collections.abc import Mapping
from typing import Any

RENAMED = {"chunk": "chunk_size", "rank": "score"}
SECTION = {"maxup": "maxup", "average": "maxup", "adversarial": "adversarial", "smoothadv": "smoothadv"}
REMOVED = ("maxup", "adversarial", "smoothadv", "hard_fraction")


def upgrade_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded recipe in the current format. A recipe in the current format is returned unchanged.

    Before version 0.2, `objective` was a name, its arguments were in a separate section, and `model.normalize` was
    spelled `normalise`.

    Example:
        >>> upgrade_recipe({"objective": "maxup", "maxup": {"m": 4, "chunk": 2}, "model": {"normalise": True}})
        {'objective': {'name': 'maxup', 'm': 4, 'chunk_size': 2}, 'model': {'normalize': True}}
    """
    upgraded = dict(recipe)
    if isinstance(upgraded.get("model"), Mapping) and "normalise" in upgraded["model"]:
        upgraded["model"] = {"normalize" if k == "normalise" else k: v for k, v in upgraded["model"].items()}
    if not set(REMOVED) & set(upgraded) and not isinstance(upgraded.get("objective"), str):
        return upgraded
    name = upgraded.get("objective", "standard")
    arguments = upgraded.get(SECTION.get(name, ""), {}) if isinstance(name, str) else {}
    if name == "hard_examples":
        arguments = {"keep": upgraded.get("hard_fraction", 0.25)}
    if isinstance(arguments, Mapping):
        kept = {RENAMED.get(k, k): v for k, v in arguments.items()}
        if name == "average":
            kept = {k: v for k, v in kept.items() if k in ("m", "warmup")}
        upgraded["objective"] = {"name": name, **kept} if isinstance(name, str) else name
    return {k: v for k, v in upgraded.items() if k not in REMOVED}

"""Recipes in files that older versions wrote, in today's form."""

from collections.abc import Mapping
from typing import Any

RENAMED = {"chunk": "chunk_size", "rank": "score"}
SECTION = {"maxup": "maxup", "average": "maxup", "adversarial": "adversarial", "smoothadv": "smoothadv"}
REMOVED = ("maxup", "adversarial", "smoothadv", "hard_fraction")


def upgrade_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded recipe in today's form. One that is in this form already stays as it is.

    Before version 0.2 the objective was a name, and its arguments were in sections.

    Example:
        >>> upgrade_recipe({"objective": "maxup", "maxup": {"m": 4, "chunk": 2}, "model": {"normalise": True}})
        {'objective': {'name': 'maxup', 'm': 4, 'chunk_size': 2}, 'model': {'normalize': True}}
    """
    found = dict(recipe)
    if isinstance(found.get("model"), Mapping) and "normalise" in found["model"]:
        found["model"] = {"normalize" if k == "normalise" else k: v for k, v in found["model"].items()}
    if not set(REMOVED) & set(found) and not isinstance(found.get("objective"), str):
        return found
    name = found.get("objective", "standard")
    arguments = found.get(SECTION.get(name, ""), {}) if isinstance(name, str) else {}
    if name == "hard_examples":
        arguments = {"keep": found.get("hard_fraction", 0.25)}
    if isinstance(arguments, Mapping):
        kept = {RENAMED.get(k, k): v for k, v in arguments.items()}
        if name == "average":
            kept = {k: v for k, v in kept.items() if k in ("m", "warmup")}
        found["objective"] = {"name": name, **kept} if isinstance(name, str) else name
    return {k: v for k, v in found.items() if k not in REMOVED}

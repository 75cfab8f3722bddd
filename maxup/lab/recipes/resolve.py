"""Check the objective of a recipe, fill in its defaults, and change it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

from maxup.errors import RecipeError, format_value, unknown_name
from maxup.lab.limits import check_range
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.lab.recipes.schema import Spec

KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "a list", dict: "a mapping"
}  # fmt: skip


def resolve_objective(spec: Any) -> Spec:
    """Check the objective of a recipe and fill in the defaults. A name alone is allowed.

    Example:
        >>> resolve_objective("standard"), resolve_objective({"name": "average", "m": 8})
        ({'name': 'standard'}, {'name': 'average', 'm': 8, 'warmup': 5, 'start': 0.0})
    """
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise RecipeError(f"objective must be {{name: ..., arguments}}, but is {format_value(spec)}")
    name = spec["name"]
    arguments = arguments_of(name)
    hints = {key: parameter.annotation for key, parameter in arguments.items()}
    for key in spec:
        if key != "name" and not arguments:
            raise RecipeError(f"objective {name!r} takes no arguments; remove {str(key)!r:.60}")
        if key != "name" and key not in arguments:
            raise RecipeError(unknown_name(str(key), arguments, f"argument of objective {name!r}"))
    values = {key: parameter.default for key, parameter in arguments.items()} | dict(spec)
    return {"name": name} | {key: _check(key, values[key], hints[key]) for key in arguments}


def override_objective(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    """Return an objective with some keys changed. With a new name, the arguments that both objectives take are kept.

    Example:
        >>> override_objective({"name": "maxup", "m": 4, "norm": "running"}, {"name": "average", "warmup": 0})
        {'name': 'average', 'm': 4, 'warmup': 0}
    """
    name = changes.get("name", spec.get("name"))
    if not isinstance(name, str):
        raise RecipeError(f"objective must be {{name: ..., arguments}}, but its name is {format_value(name)}")
    for key in changes:
        known_to = [one for one in OBJECTIVES if key in arguments_of(one)]
        if key != "name" and known_to and name not in known_to:
            raise RecipeError(
                f"--objective.{key} has no effect, because objective.name is {name}; remove it, or add "
                f"--objective.name {known_to[0]}"
            )
    kept = {k: v for k, v in spec.items() if k in arguments_of(name)}
    return {"name": name, **kept, **{k: v for k, v in changes.items() if k != "name"}}


def _check(key: str, value: Any, hint: Any) -> Any:
    """Return the value of an argument as its type, after checking the type and the range."""
    if type(None) in get_args(hint):
        if value is None:
            return None
        hint = get_args(hint)[0]
    annotated, hint = hint, get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise RecipeError(unknown_name(str(value), get_args(hint), f"objective.{key}"))
        return value
    if isinstance(value, str) and hint is float:
        with suppress(ValueError):
            value = float(value)  # YAML reads 1e-3 as a string
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, (int, float) if hint is float else hint):
        raise RecipeError(f"objective.{key} must be {KINDS[hint]}, but is {format_value(value)}")
    value = hint(value)
    check_range(f"objective.{key}", value, annotated)
    return value

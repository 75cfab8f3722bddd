"""Turn the errors of jsonargparse into one sentence: what came, what was wanted, what to do."""

import dataclasses
import re
from typing import Any, get_args, get_origin, get_type_hints

from maxup.errors import unknown_name
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.lab.recipes.resolve import KINDS
from maxup.lab.recipes.schema import Recipe, Spec, flat

SEE_HELP = "see maxup train --help"


def explain(error: Exception) -> str:
    """Return the message of an error that jsonargparse raised.

    Example:
        >>> explain(ValueError("unrecognized arguments: --epocs 3"))
        "option 'epocs' is unknown; did you mean 'epochs'? (see maxup train --help)"
    """
    text = " ".join(str(error).split())
    if unknown := re.match(r"unrecognized arguments: (--)?([\w.+-]+)", text):
        if not unknown[1]:
            return f"{unknown[2]!r} is not an option; options start with --, such as --seed 1 ({SEE_HELP})"
        return f"{_unknown_option(unknown[2])} ({SEE_HELP})"
    if section := re.match(r'.*?"(\w+)": Unable to load config', text):
        return f"{section[1]} is a section; set one of its settings, such as --{_first_setting(section[1])}"
    if wrong := re.search(r'"([\w.]+)": (?:Expected|Does not validate).*(?:Got|Given) value: (.*)$', text):
        return _wrong_type(wrong[1], wrong[2]) or text
    return text.replace('Parser key "', '"').replace("<class '", "").replace("'>", "")


def _unknown_option(name: str) -> str:
    arguments = {f"objective.{key}": None for objective in OBJECTIVES for key in arguments_of(objective)}
    keys = [*flat(dataclasses.asdict(Recipe())), *arguments]
    if same := [key for key in keys if key.endswith(f".{name.rpartition('.')[2]}")]:
        return f"option {name!r} is unknown; did you mean {' or '.join(f'--{key}' for key in same)}?"
    return unknown_name(name, keys, "option")


def _first_setting(section: str) -> str:
    """Return a setting of a section, as an option and its value.

    Example:
        >>> _first_setting("optim")
        'optim.name sgd'
    """
    settings = flat(dataclasses.asdict(Recipe())).items()
    return next(f"{key} {value}" for key, value in settings if key.startswith(f"{section}."))


def _wrong_type(key: str, value: str) -> str:
    """Return what a setting must be and what it is. The message is empty if the key is not a setting."""
    hint: Any = Recipe
    for part in key.split("."):
        hint = get_type_hints(hint).get(part) if dataclasses.is_dataclass(hint) else None
    choices = [kind for kind in get_args(hint) if kind is not type(None)] if hint else []
    if choices and isinstance(choices[0], str):  # a Literal
        quote = " (YAML reads no as false: write 'no')" if value == "False" and "no" in choices else ""
        return unknown_name(value, choices, key) + quote
    if hint == list[Spec]:
        example = "[{name: crop_flip}, {name: cutout, length: 8}]"
        return f"{key} must be a list of names with their arguments, such as '{example}', but is {value:.60}"
    null = " or null" if type(None) in get_args(hint) else ""
    kind = choices[0] if null else hint
    kind = get_origin(kind) or kind
    return f"{key} must be {KINDS[kind]}{null}, but is {value:.60}" if kind in KINDS else ""

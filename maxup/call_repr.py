"""The repr of perturbations and objectives: the call that creates them."""

import math
from collections.abc import Container
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch


def call_repr(thing: Any, hide: Container[str] = ()) -> str:
    """Return the constructor call of an object, reading each argument from the attribute of the same name.

    Keyword-only arguments are omitted if they have their default values, and so are arguments that default to None. A
    required argument without an attribute is shown as `...`.

    Args:
        thing: The object.
        hide: Names of arguments to omit.

    Example:
        >>> from maxup import CutMix, MaxUp
        >>> MaxUp(CutMix(10), chunk_size=2)
        MaxUp(CutMix(num_classes=10), m=4, chunk_size=2)
    """
    arguments: list[str] = []
    for name, parameter in signature(type(thing)).parameters.items():
        required = parameter.default is Parameter.empty
        if name in hide or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        if parameter.kind is Parameter.VAR_POSITIONAL:
            arguments += [_format(value) for value in getattr(thing, name, ())]
        elif required:
            value = _format(getattr(thing, name, ...))
            arguments.append(f"{name}={value}" if parameter.kind is Parameter.KEYWORD_ONLY else value)
        else:
            value, default = _format(getattr(thing, name, parameter.default)), parameter.default
            # One number for all channels is stored as a tuple of one.
            is_default = value in (_format(default), _format((default,)))
            if not is_default or (parameter.kind is not Parameter.KEYWORD_ONLY and default is not None):
                arguments.append(f"{name}={value}")
    return f"{type(thing).__name__}({', '.join(arguments)})"


def _format(value: Any) -> str:
    if value is ...:
        return "..."
    if isinstance(value, float) and math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    if type(value) is list:
        return f"[{', '.join(map(_format, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_format, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.Generator):
        return f"torch.Generator({str(value.device)!r})"
    if isinstance(value, partial):
        named = [f"{name}={_format(inner)}" for name, inner in value.keywords.items()]
        return f"partial({', '.join([*map(_format, (value.func, *value.args)), *named])})"
    if hasattr(value, "__qualname__"):  # a function, a method or a class
        return str(value.__name__)
    if getattr(type(value), "__repr__", None) is object.__repr__:
        try:
            return call_repr(value)
        except (TypeError, ValueError):  # a class without a signature
            return f"{type(value).__name__}(...)"
    return repr(value) if "\n" not in repr(value) else f"{type(value).__name__}(...)"

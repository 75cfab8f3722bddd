"""What perturbations and objectives are: the call that creates them, for their repr, and their settings."""

import math
from collections.abc import Container, Mapping
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


def settings(thing: Any, depth: int = 4) -> Any:
    """Return the public attributes of an object in a form to compare. State that a step changes is not included.

    Numbers, strings, and what lists, dicts and objects contain are compared by value, and everything else by identity.

    Example:
        >>> from maxup import Gaussian
        >>> noise = Gaussian(0.1)
        >>> before = settings(noise)
        >>> noise.sigma = 0.2
        >>> settings(noise) == before
        False
    """
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, list | tuple):
        return [settings(part, depth) for part in thing]
    if isinstance(thing, Mapping) and depth:
        return {key: settings(value, depth - 1) for key, value in thing.items()}
    opaque = isinstance(thing, (torch.Tensor, torch.nn.Module, torch.Generator))
    if not depth or opaque or not hasattr(thing, "__dict__"):
        return id(thing)
    public = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    return id(thing), {n: settings(value, depth - 1) for n, value in public.items() if n not in ("step", "generator")}

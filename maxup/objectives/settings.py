"""The settings of an objective in a form to compare: a CUDA graph is captured again if they change."""

import types
from collections.abc import Mapping
from typing import Any

import torch

from maxup.snapshot import PLAIN, function_values

OPAQUE = (torch.Tensor, torch.nn.Module, torch.Generator, types.ModuleType, type)
STEP = ("step", "generator")  # state that a step changes


class ByIdentity:
    """Compares by identity, and keeps the object alive, so that its address is not used again."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.thing is other.thing


def settings(thing: Any, depth: int = 4) -> Any:
    """Return the attributes of an object, without private ones of this package and without state that a step changes.

    Numbers, strings, and what lists, dicts and objects contain are compared by value, and everything else by identity.
    Of a function, the numbers, strings, lists and dicts that it reads by name are compared.

    Example:
        >>> from maxup import Gaussian
        >>> noise = Gaussian(0.1)
        >>> before = settings(noise)
        >>> noise.sigma = 0.2
        >>> settings(noise) == before
        False
    """
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, list | tuple):
        return [settings(part, depth) for part in thing]
    if isinstance(thing, Mapping) and depth:
        return {key: settings(value, depth - 1) for key, value in thing.items()}
    if isinstance(thing, types.FunctionType) and depth:
        return ByIdentity(thing), {
            name: settings(value, 1) if isinstance(value, (*PLAIN, list, tuple, Mapping)) else ByIdentity(value)
            for name, value in function_values(thing)
        }
    if not depth or isinstance(thing, OPAQUE) or not hasattr(thing, "__dict__"):
        return ByIdentity(thing)
    ours = type(thing).__module__.partition(".")[0] == "maxup"
    kept = {
        name: value
        for name, value in vars(thing).items()
        if name not in STEP and (not name.startswith("_") or (not ours and isinstance(value, (*PLAIN, torch.Tensor))))
    }
    return ByIdentity(thing), {name: settings(value, depth - 1) for name, value in kept.items()}

"""Find the modules that functions may call, such as a head that `forward=` uses beside the model."""

import functools
import itertools
import types
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor, nn

MAX_DEPTH, MAX_WIDTH = 6, 100  # levels of the search, and parts of one object
MAX_OBJECTS, MAX_PARTS = 1000, 5000  # a search takes a few milliseconds at most, and usually far less
VALUES = (bool, int, float, complex, str, bytes, type(None), types.ModuleType, Tensor, np.ndarray)
SEQUENCES = (list, tuple, set, frozenset, deque)
LIBRARIES = ("builtins", "torch", "maxup", "numpy")  # their functions call only modules that are passed to them


def called_modules(*functions: Any) -> list[nn.Module]:
    """Return the modules that functions may call: in closures, defaults, globals, and attributes of bound objects.

    Example:
        >>> loss = nn.MSELoss()
        >>> called_modules(loss.forward, functools.partial(loss, target=0), lambda o, t: loss(o, t)) == [loss]
        True
    """
    found: dict[nn.Module, None] = {}
    seen: set[int] = set()
    level, left = list(functions), MAX_PARTS
    for _ in range(MAX_DEPTH):
        following: list[Any] = []
        for value in level:
            if issubclass(type(value), nn.Module):  # isinstance would ask a proxy for what it stands for
                found[value] = None
            elif id(value) not in seen and len(seen) < MAX_OBJECTS and left > 0:
                seen.add(id(value))
                parts: list[Any] = []
                with suppress(Exception):  # some objects compute their attributes, and may fail
                    parts.extend(itertools.islice(_parts(value, type(value)), MAX_WIDTH))
                left -= len(parts)
                following += [part for part in parts if not issubclass(type(part), VALUES)]
        level = following
    return list(found)


def _parts(value: Any, kind: type) -> Iterator[Any]:
    """Yield the values that a call of `value` may reach."""
    if issubclass(kind, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif issubclass(kind, dict):
        yield from dict.values(value)
    elif issubclass(kind, SEQUENCES):
        yield from next(base for base in SEQUENCES if issubclass(kind, base)).__iter__(value)
    elif issubclass(kind, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif issubclass(kind, types.FunctionType):
        if not _is_from_library(value):
            yield from _parts_of_function(value)
    elif issubclass(kind, type):
        for base in value.__mro__:
            if not _is_from_library(base):
                yield from _parts_of_class(base)
    else:
        yield kind
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                with suppress(AttributeError):  # not assigned yet
                    yield object.__getattribute__(value, name)
        yield from object.__getattribute__(value, "__dict__").values()


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values())
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    names = _names(function.__code__)
    for value in [function.__globals__.get(name) for name in names]:
        yield value
        if type(value) is types.ModuleType and not _is_from_library(value):
            yield from (vars(value).get(name) for name in names)


def _parts_of_class(base: type) -> Iterator[Any]:
    for name, attribute in list(vars(base).items()):
        if name == "__call__" or issubclass(type(attribute), (nn.Module, dict, *SEQUENCES)):
            yield attribute


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a function, and in the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _is_from_library(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(name).partition(".")[0] in LIBRARIES

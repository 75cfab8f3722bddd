"""The catalog of data sets: what they are called, which files they have, and which function loads them.

To add a data set, add a module to `maxup/lab/data/sets` with a function decorated by `register_data`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from maxup.errors import DataError, unknown_name

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder
    from maxup.lab.data.images import Images
    from maxup.lab.data.text import Text

Root = str | os.PathLike[str] | None  # a folder to search first
Load = Callable[[Root], "tuple[Images | Folder, ...] | tuple[Images | Folder, None] | Text"]
LoadT = TypeVar("LoadT", bound=Callable[..., object])
SPLITS = {"train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test", "testing")}

_registered: dict[str, "DataSet"] = {}


@dataclass(frozen=True)
class DataSet:
    """A registered data set.

    Args:
        name: Name of the data set in recipes.
        load: The decorated function.
        files: The files it consists of. () if `root` itself is the data set, such as any folder of images.
        instructions: How to get the data set, in a sentence or two.
        folders: Where the files may be, relative to a searched folder. The first folder that has them all is used.
        gzip: Whether every file may also be compressed, with the suffix .gz.
        directories: Whether `files` are directories, such as train and val.
        package: The installed Python package that contains the files, if there is one.
    """

    name: str
    load: Load
    files: tuple[str, ...]
    instructions: str
    folders: tuple[str, ...] = (".",)
    gzip: bool = False
    directories: bool = False
    package: str | None = None


def register_data(name: str, **fields: Any) -> Callable[[LoadT], LoadT]:
    """Register the decorated function as the loader of a data set. `fields` are the other fields of `DataSet`.

    The function takes `root`, a folder to search first. It returns the training and test images, or a `Text`.
    """

    def decorate(load: LoadT) -> LoadT:
        known = _registered.get(name)
        if known and known.load.__module__ != load.__module__:
            raise ValueError(f"data set {name!r} is registered in {known.load.__module__} and in {load.__module__}")
        _registered[name] = DataSet(name, load, **fields)  # type: ignore[arg-type]
        return load

    return decorate


@cache
def all_data_sets() -> dict[str, DataSet]:
    """Import every module of `maxup.lab.data.sets` and return the registered data sets by name."""
    sets = import_module("maxup.lab.data.sets")
    for module in iter_modules(sets.__path__):
        import_module(f"{sets.__name__}.{module.name}")
    return _registered


def get_data_set(name: str) -> DataSet:
    """Return a data set by name.

    Example:
        >>> get_data_set("CIFAR-10")
        Traceback (most recent call last):
        maxup.errors.DataError: data set 'CIFAR-10' is unknown; did you mean 'cifar10'?
    """
    data_sets = all_data_sets()
    if not isinstance(name, str) or name not in data_sets:
        raise DataError(unknown_name(str(name), data_sets, "data set"))
    return data_sets[name]

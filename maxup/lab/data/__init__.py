"""Data sets by name. Listing them imports nothing heavy: each one's module is imported when it is loaded."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from maxup.errors import DataError, unknown_name

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder
    from maxup.lab.data.images import Images
    from maxup.lab.data.text import Text

__all__ = ["DATA", "DataError", "Root", "list_data", "load_data"]

Root = str | os.PathLike[str] | None  # a folder to look in first
Load = Callable[[Root], "tuple[Images | Folder, Images | Folder | None] | Text"]


def _later(module: str, function: str) -> Load:
    def load(root: Root = None) -> Any:
        return getattr(import_module(f"maxup.lab.data.{module}"), function)(root)

    return load


# Every data set there is: its name, and what returns its training and test images, or its text.
DATA: dict[str, Load] = {
    "digits": _later("digits", "load_digits"),
    "fashion_mnist": _later("fashion_mnist", "load_fashion_mnist"),
    "cifar10": _later("cifar", "load_cifar10"),
    "cifar100": _later("cifar", "load_cifar100"),
    "imagenet": _later("imagenet", "load_imagenet"),
    "imagenette": _later("imagenet", "load_imagenette"),
    "ptb": _later("text", "load_ptb"),
    "wikitext2": _later("text", "load_wikitext2"),
    "text": _later("text", "load_text"),
}


def list_data() -> list[str]:
    """The names that `load_data` knows.

    Example:
        >>> list_data()
        ['cifar10', 'cifar100', 'digits', 'fashion_mnist', 'imagenet', 'imagenette', 'ptb', 'text', 'wikitext2']
    """
    return sorted(DATA)


def load_data(name: str, root: Root = None) -> Any:
    """The training and the test images of a data set; the latter are None where it has no split of its own.

    Of a text it is a `Text`, with its three parts.

    Args:
        name: One of `list_data()`.
        root: A folder to look in first; the others are MAXUP_DATA, ./data and the system's.

    Example:
        >>> train, test = load_data("digits")
        >>> len(train), tuple(train.x.shape), test
        (1797, (1797, 1, 8, 8), None)
    """
    if name not in list_data():
        raise DataError(unknown_name(str(name), DATA, "data set"))
    return DATA[name](root)

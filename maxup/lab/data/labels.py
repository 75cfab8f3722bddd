"""Number the classes of a user's labels, and match those of test data with those of training data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, first_names
from maxup.lab.data.tensors import to_tensor

if TYPE_CHECKING:
    from maxup.lab.data.images import Images
    from maxup.lab.data.stream import Stream

Names = tuple[str, ...]
MOST_CLASSES = 10**6


def match_classes(y: Tensor, classes: Names, train: Names, part: str) -> Tensor:
    """Return the classes with the numbers that classes of the same name have in training.

    Args:
        y: Classes of validation or test examples, (N,).
        classes: Their names. Names "0", "1", ... mean that the data have numbers only.
        train: Names of the training classes, likewise.
        part: "test" or "validation", for messages.

    Example:
        >>> match_classes(torch.tensor([0, 1]), ("ant", "cat"), ("ant", "bee", "cat"), "test")
        tensor([0, 2])
    """
    if are_numbers(classes) and are_numbers(train):
        return y
    index = {name: i for i, name in enumerate(train)}
    unknown = [classes[i] for i in y.unique().tolist() if classes[i] not in index]
    if unknown and are_numbers(classes) != are_numbers(train):
        with_names, with_numbers = (part, "training") if are_numbers(train) else ("training", part)
        raise DataError(
            f"your {with_names} data have names of classes, but your {with_numbers} data have only numbers; return "
            "names in both, as labels or in an attribute classes, or numbers in both"
        )
    if unknown:
        raise _unseen(f"{part} data", unknown)
    return torch.tensor([index.get(name, -1) for name in classes])[y]


def are_numbers(classes: Names) -> bool:
    """Whether classes are named "0", "1", ..., as those of data without names."""
    return all(name == str(i) for i, name in enumerate(classes))


def check_seen(y: Tensor, train: "Images | Stream", part: str) -> None:
    """Raise a DataError if validation or test examples have a class that no training example has."""
    if unseen := sorted(set(y.tolist()) - set(train.y.tolist())):
        raise _unseen(f"{part} data", [*map(str, unseen)])


def _unseen(what: str, names: Sequence[str]) -> DataError:
    return DataError(
        f"your {what} have classes without a training example: {first_names(names)}; add training examples of these "
        "classes, or leave the classes out"
    )


def to_classes(y: Any, classes: tuple[str, ...] | None = None, kind: str = "") -> tuple[Tensor, tuple[str, ...]]:
    """Return the classes as int64, (N,), and their names. `kind` is "test " or "validation ", for messages.

    Example:
        >>> to_classes(["dog", "cat", "dog"])
        (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    y = y if isinstance(y, Tensor | list | tuple) else np.asarray(y)  # a column of pandas becomes an array
    if _has_names(y):
        names = tuple(map(str, y))
        if not all(isinstance(label, str) for label in y):
            raise DataError(f"your {kind}labels are names and numbers; return one or the other")
        classes = classes or tuple(sorted(set(names)))
        if unknown := sorted(set(names) - set(classes)):
            raise _unseen("labels", unknown)
        index = {name: i for i, name in enumerate(classes)}
        return torch.tensor([index[name] for name in names]), classes
    labels = to_tensor(y)
    if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1 or not len(labels):
        raise DataError(
            f"your labels are {labels.dtype} of shape {tuple(labels.shape)}; return one integer class per example"
        )
    labels = labels.long()
    if int(labels.max()) < 0:
        raise DataError(
            f"your {kind}labels are all negative, as in a test set whose labels are not public; return a labeled part "
            "instead, or number the classes from 0"
        )
    if int(labels.min()) < 0:
        raise DataError(f"your {kind}labels start at {int(labels.min())}; number the classes from 0")
    highest = int(labels.max())
    if highest >= MOST_CLASSES:
        raise DataError(f"your labels go up to {highest}; number the classes from 0, at most {MOST_CLASSES:,}")
    if classes is None or highest >= len(classes):
        classes = tuple(map(str, range(highest + 1)))
    return labels, classes


def _has_names(y: Any) -> bool:
    """Whether some labels are strings."""
    if isinstance(y, Tensor) or (isinstance(y, np.ndarray) and y.dtype.kind in "biufc"):
        return False
    return any(isinstance(label, str) for label in y)

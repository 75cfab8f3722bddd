"""Make `Images` from a user's arrays: byte or float images with any number of channels, rows, or token ids."""

import sys
import warnings
from collections.abc import Collection, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, error_message, first_names
from maxup.lab.data.images import Images
from maxup.lab.output import say
from maxup.rng import process_rank

if TYPE_CHECKING:
    from maxup.lab.data.stream import Stream

Shape = tuple[int, ...]
Names = tuple[str, ...]
MOST_CLASSES = 10**6


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, an array, a list of arrays, or a list of numbers or of such lists.

    Only the first and last elements of lists of numbers are checked. A pair of lists, x and y, is not an array.

    Example:
        >>> is_array([[1, 2], [3, 4]]), is_array([torch.zeros(2)]), is_array([(torch.zeros(2), 1)]), is_array("text")
        (True, True, False, False)
        >>> is_array(([[1, 2], [3, 4]], [0, 1]))
        False
    """
    if _is_list_of_arrays(value):
        return True
    if isinstance(value, list | tuple) and value:
        first, last = value[0], value[-1]
        while isinstance(first, list) and first and _depth(first) == _depth(last):
            first, last = first[0], first[-1]
        return isinstance(first, Real) or (isinstance(first, Tensor | np.generic) and first.ndim == 0)
    return hasattr(value, "__array__") and hasattr(value, "shape")  # a tensor, an array, or a table of pandas


def _depth(value: Any) -> int:
    """Return how many lists are nested in each other, by their first elements."""
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Tensor | np.ndarray) and v.ndim for v in value)


def from_arrays(arrays: Sequence[Any]) -> tuple[Images, Images | None]:
    """Make the training and test examples. They are normalized with the mean and std of the training examples.

    Args:
        arrays: (x, y), or (x, y, x_test, y_test), see `make_images`.
    """
    x, y, *test = arrays
    train = make_images(x, y)
    return train, make_images(*test, like=train) if test else None


def make_images(
    x: Any,
    y: Any,
    classes: Names | None = None,
    *,
    like: "Images | Stream | None" = None,
    names: Names | None = None,
    part: str = "test",
    columns: Names = (),
) -> Images:
    """Make `Images` from arrays.

    Args:
        x: Images as bytes or floats, (N, C, H, W) or (N, H, W); rows of numbers, (N, C), as floats or bytes; or token
            ids, (N, T), as integers.
        y: Classes, (N,): whole numbers from 0, or names.
        classes: Names of the classes. Default: the names in y in order, or the numbers.
        like: The training examples, if these are for validation or test.
        names: Names of the training classes. Default: like.classes.
        part: "test" or "validation", for messages.
        columns: Names of the columns of rows, in order. Default: those of x, if it is a table of pandas.
    """
    kind, columns, given = f"{part} " if like else "", columns or _column_names(x), to_tensor(x)
    x, (y, classes) = prepare(given), to_classes(y, classes, kind)
    if not len(x):
        raise DataError(f"your {kind}data are empty; return at least one example")
    if like is None:
        check_layout(tuple(x.shape[1:]))
        top = 255 if x.dtype == torch.uint8 else 1
        blank = (0.0,) * (0 if x.dtype == torch.int64 else x.shape[1])
        if x.ndim == 2 and x.is_floating_point():
            _check_precision(given if given.dtype == torch.float64 else x, columns)
        return Images(x, y, classes, blank, (1.0,) * len(blank), top, columns).with_statistics()
    if like.columns and columns and columns != like.columns:
        check_columns(columns, like.columns)
        x = x[:, [columns.index(name) for name in like.columns]]
    if x.dtype != like.dtype or tuple(x.shape[1:]) != like.shape:
        raise DataError(
            f"your {kind}images are {x.dtype} of shape {tuple(x.shape)}, but your training images are {like.dtype} of "
            f"shape {(len(like), *like.shape)}; return images of the same type and size"
        )
    y = match_classes(y, classes, names or like.classes, part)
    check_seen(y, like, part)
    return Images(x, y, like.classes, like.mean, like.std, like.top, like.columns)


def _column_names(x: Any) -> Names:
    """Return the names of the columns of a table of pandas or Arrow, or ()."""
    names = getattr(x, "column_names" if hasattr(x, "column_names") else "columns", ())
    return tuple(names) if len(names) and len(names) == x.shape[-1] else ()


def check_columns(found: Collection[str], expected: Names) -> None:
    """Raise a DataError if an example or a table has other columns than the first training example."""
    advice = "return the same columns in all examples"
    if missing := [name for name in expected if name not in found]:
        raise DataError(f"column {missing[0]!r} is missing in some of your data; {advice}")
    if added := [name for name in found if name not in expected]:
        raise DataError(f"column {added[0]!r} is only in some of your data; {advice}")


def _check_precision(x: Tensor, columns: Names) -> None:
    """Print a warning if float32 holds only about 100 different values of a column, or fewer. x: (N, C)."""
    low, high = x.detach().aminmax(dim=0)  # (C,) each
    size = torch.maximum(low.abs(), high.abs())
    lost = ((high > low) & (high - low < 1e-5 * size)).nonzero()[:, 0].tolist()
    if lost and process_rank() == 0:
        i = lost[0]
        say(
            f"column {columns[i] if columns else i!r} of your data ranges over {float(high[i] - low[i]):.3g} near "
            f"{float(size[i]):.3g}, which float32 hardly resolves; subtract an offset from it, such as its minimum",
            file=sys.stderr,
        )


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
        raise DataError(
            f"your {part} data have classes without a training image: {first_names(unknown)}; add training images of "
            "these classes, or leave the classes out"
        )
    return torch.tensor([index.get(name, -1) for name in classes])[y]


def are_numbers(classes: Names) -> bool:
    """Whether classes are named "0", "1", ..., as those of data without names."""
    return all(name == str(i) for i, name in enumerate(classes))


def check_seen(y: Tensor, train: "Images | Stream", part: str) -> None:
    """Raise a DataError if validation or test examples have a class that no training example has."""
    if unseen := sorted(set(y.tolist()) - set(train.y.tolist())):
        raise DataError(
            f"your {part} images have classes without a training image: {str(unseen)[1:-1]}; add training images of "
            "these classes, or leave the classes out"
        )


def to_tensor(values: Any) -> Tensor:
    """Convert an array, or a list of numbers, to a tensor."""
    if not is_array(values):
        raise DataError(f"your data have a {type(values).__name__} as x or y; return tensors or numpy arrays")
    try:
        return torch.stack([*map(as_tensor, values)]) if _is_list_of_arrays(values) else as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        why = error_message(error)
        raise DataError(f"your data cannot be converted to tensors ({why}); return tensors or numpy arrays") from None


def as_tensor(values: Any) -> Tensor:
    """Convert what numpy can read to a tensor. An array is copied only if torch cannot share its memory.

    Example:
        >>> as_tensor(np.arange(3)[::-1])
        tensor([2, 1, 0])
    """
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype == object:  # such as a table of float and bool columns
        array = np.asarray(array.tolist())
    if not array.dtype.isnative or min(array.strides, default=1) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing is written to it
        return torch.as_tensor(array)


def prepare(x: Tensor) -> Tensor:
    """Return x, (N, ...), in a type and with dimensions that `Images` takes."""
    if x.is_complex() or x.ndim < 2 or x.ndim > 5:
        raise DataError(
            f"your data are {x.dtype} of shape {tuple(x.shape)}; return images (N, C, H, W) as bytes or floats, rows "
            "(N, C) as floats, or token ids (N, T) as integers"
        )
    if x.layout != torch.strided:
        raise DataError("your data are a sparse tensor; return a dense one, x.to_dense()")
    x = x.detach()
    if x.is_floating_point():
        x = x.float()
        if x.numel() and not torch.stack(x.aminmax()).isfinite().all():  # without a copy of x
            where = f", first in example {_first_not_finite(x)}" if len(x) > 1 else ""
            raise DataError(f"your data have NaN or infinite values{where}; replace or remove them")
    elif x.dtype != torch.uint8 and x.ndim == 2:
        x = x.long()  # token ids
    elif x.dtype != torch.uint8:
        x = _to_bytes(x)
    if x.ndim == 2 and x.dtype == torch.uint8:
        return x.float()
    return x.unflatten(0, (-1, 1)) if x.ndim == 3 else x  # (N, 1, H, W)


def _first_not_finite(x: Tensor) -> int:
    return next(i for i, example in enumerate(x) if not example.isfinite().all())


def _to_bytes(x: Tensor) -> Tensor:
    """Convert integers from 0 to 255 to bytes. Hugging Face `datasets` return bytes of an Array3D column like this."""
    low, high = map(int, x.long().aminmax()) if x.numel() else (0, 0)  # torch has no minimum of uint16
    if x.dtype == torch.bool or low < 0 or high > 255:
        values = "" if x.dtype == torch.bool else f" from {low} to {high}"
        raise DataError(f"your images are {x.dtype}{values}; return integers from 0 to 255, or floats")
    return x.to(torch.uint8)


def check_layout(shape: Shape) -> None:
    """Raise a DataError if the shape of an example looks like (H, W, C)."""
    if len(shape) == 3 and shape[0] > 4 >= shape[2]:
        raise DataError(
            f"your images have shape (N, {str(shape)[1:]}, which looks like (N, H, W, C); return (N, C, H, W), for "
            "example x.permute(0, 3, 1, 2)"
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
            raise DataError(
                f"your labels have classes without a training image: {first_names(unknown)}; add training images of "
                "these classes, or leave the classes out"
            )
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

"""Make `Images` from a user's arrays: byte or float images with any number of channels, rows, or token ids."""

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data.images import Images
from maxup.lab.data.labels import Names, check_seen, match_classes, to_classes
from maxup.lab.data.tensors import check_layout, prepare, to_tensor
from maxup.lab.output import say
from maxup.rng import process_rank

if TYPE_CHECKING:
    from maxup.lab.data.stream import Stream


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

"""One example of a user's data set: a pair (x, y), or a dict with columns such as image and label."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, a_type, first_names
from maxup.lab.data.arrays import check_columns
from maxup.lab.data.tensors import as_tensor

INPUTS = ("image", "img", "pixel_values", "x", "input_ids", "tokens", "features")
LABELS = ("label", "labels", "y", "target", "class", "fine_label")
Label = int | str


def to_example(item: Any, columns: tuple[str, ...] = ()) -> tuple[Tensor, Label]:
    """Return x and the class of an example.

    Args:
        item: (x, y), or a dict with a column of `INPUTS` and one of `LABELS`. Without a column of `INPUTS`, or if it is
            a number, all columns but the label must be numbers; together they are a row. x is a tensor, an array, a
            list of numbers, or an image of PIL.
        columns: Names of the columns of a row, in order. Default: those of the example.

    Example:
        >>> to_example({"width": 2.5, "height": 4, "label": "cat"})
        (tensor([2.5000, 4.0000], dtype=torch.float64), 'cat')
    """
    if isinstance(item, Mapping):
        x, y = _columns(item, columns)
    elif isinstance(item, tuple | list) and len(item) == 2:
        x, y = item
    else:
        raise DataError(
            f"an example of your data is {_describe(item)}; it must be a pair (x, y), or a dict with columns such as "
            "image and label"
        )
    return _to_tensor(x), to_label(y)


def label_column(names: Any) -> str | None:
    """Return the name of the column with the labels, or None."""
    return next((name for name in LABELS if name in names), None)


def row_columns(item: Any) -> tuple[str, ...]:
    """Return the names of the columns that form a row, in order. () if an example is not a row of named columns.

    Example:
        >>> row_columns({"width": 2.5, "label": "cat", "x": 4})
        ('width', 'x')
    """
    if not isinstance(item, Mapping) or _input_column(item) is not None:
        return ()
    return tuple(name for name in item if name != label_column(item))


def _input_column(item: Mapping[str, Any]) -> str | None:
    return next((name for name in INPUTS if name in item and not _is_number(item[name])), None)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0
    return isinstance(value, Real | np.bool_)


def _columns(item: Mapping[str, Any], columns: tuple[str, ...]) -> tuple[Any, Any]:
    label, x = label_column(item), _input_column(item)
    if label is None:
        raise DataError(
            f"your data have the columns {first_names(list(item))}, but none of {', '.join(LABELS)}; rename the column "
            "with the labels"
        )
    if x is not None:
        return item[x], item[label]
    others = {name: value for name, value in item.items() if name != label}
    if missing := [name for name, value in others.items() if value is None]:
        raise DataError(f"column {missing[0]!r} of your data has no value (None); fill it, or leave the example out")
    numbers = [_is_number(value) or (isinstance(value, Tensor) and value.numel() == 1) for value in others.values()]
    if wrong := [name for name, number in zip(others, numbers, strict=True) if not number]:
        is_text = isinstance(others[wrong[0]], str)
        advice = f"call the input one of {', '.join(INPUTS)}"
        if is_text:
            advice = "convert it to a number, or tokenize it and call the token ids input_ids"
        raise DataError(f"column {wrong[0]!r} of your data is {_describe(others[wrong[0]])}; {advice}")
    columns = columns or tuple(others)
    check_columns(others, columns)
    return [float(others[name]) for name in columns], item[label]


def _to_tensor(x: Any) -> Tensor:
    if hasattr(x, "convert") and hasattr(x, "mode"):  # an image of PIL
        from maxup.lab.data.decode import to_rgb  # imports PIL

        if x.mode == "F":
            raise DataError(
                "an image of your data has float pixels (mode F), which bytes cannot hold; return a float array, for "
                "example np.asarray(image)"
            )
        array = np.array(x if x.mode == "L" else to_rgb(x))
        return torch.from_numpy(array).permute(2, 0, 1) if array.ndim == 3 else torch.from_numpy(array)
    try:
        return as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        advice = "return one of them"
        if isinstance(x, str):
            advice = "open an image with PIL.Image.open, or tokenize a text and return the token ids"
        raise DataError(
            f"the input of an example is {_describe(x)}, which is not a tensor, an array or an image; {advice}"
        ) from None


def to_label(y: Any) -> Label:
    """Return a label as an int or a string."""
    if isinstance(y, str):
        return y
    if isinstance(y, np.bool_) or (isinstance(y, Tensor | np.ndarray) and y.reshape(-1).shape == (1,)):
        y = y.item()
    if not isinstance(y, Integral):
        raise DataError(f"the label of an example is {_describe(y)}; it must be one integer class or a name")
    return int(y)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{a_type(value)} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{a_type(value)} of {len(value)}"
    if value is None:
        return "None"
    return a_type(value)

"""Convert a user's arrays to tensors, in a type and with dimensions that `Images` takes."""

import warnings
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, a_type, error_message

Shape = tuple[int, ...]


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


def to_tensor(values: Any) -> Tensor:
    """Convert an array, or a list of numbers, to a tensor."""
    if not is_array(values):
        raise DataError(f"your data have {a_type(values)} as x or y; return tensors or numpy arrays")
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

"""Arrays of many types become the same tensors, and others get a message."""

import numpy as np
import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data.arrays import from_arrays
from tests.lab.data.test_arrays import reject


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: [object()] * 6}, "your data have a list as x or y; return tensors or numpy arrays"),
        ({0: np.array([None] * 6)}, "your data cannot be converted to tensors .*; return tensors or numpy arrays"),
        ({0: torch.full((6, 8, 8), torch.nan)}, "your data have NaN or infinite values, first in example 0; replace"),
        ({0: torch.ones(6, 2).index_fill(0, torch.tensor([3]), torch.inf)}, "infinite values, first in example 3;"),
        ({0: torch.full((6, 8, 8), 256)}, "your images are torch.int64 from 256 to 256; return integers from 0 to 255"),
        ({0: torch.full((6, 8, 8), -1).short()}, "your images are torch.int16 from -1 to -1; return integers from 0"),
        ({0: torch.zeros(6, 8, 8).bool()}, "your images are torch.bool; return integers from 0 to 255, or floats"),
        ({0: torch.zeros(6, 8, 8).to_sparse()}, "your data are a sparse tensor; return a dense one"),
        ({0: [np.zeros((8, 8))] * 5 + [np.zeros((8, 7))]}, "your data cannot be converted to tensors .stack expects"),
        ({0: torch.zeros(6)}, r"your data are torch.float32 of shape \(6,\); return images"),
    ],
)
def test_invalid_arrays_are_an_error(change, message):
    reject(change, message)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.int64),  # such as bytes of an Array3D of Hugging Face
        lambda x: x.astype(np.uint16),
        lambda x: x[::-1].copy()[::-1],  # negative strides, such as BGR images that are mirrored to RGB
        lambda x: np.broadcast_to(x, x.shape),  # not writable
        lambda x: x.astype(">i4"),
        list,
        lambda x: [torch.from_numpy(one) for one in x],
    ],
)
def test_arrays_of_other_types_are_the_same_bytes(change):
    x, y = np.random.default_rng(0).integers(256, size=(6, 3, 4, 5), dtype=np.uint8), [0, 1] * 3
    train, _ = from_arrays((change(x), y))
    assert train.dtype == torch.uint8
    assert train.x.tolist() == x.tolist()


def test_arrays_with_a_gradient():
    x = torch.rand(6, 3, 4, 5, requires_grad=True)
    train, _ = from_arrays((x, [0, 1] * 3))
    assert not train.x.requires_grad
    assert train.digest == from_arrays((x.detach(), [0, 1] * 3))[0].digest


def test_channels_last_is_an_error():
    x, y = torch.zeros(6, 8, 8, 3, dtype=torch.uint8), torch.arange(6) % 2
    with pytest.raises(DataError, match=r"looks like \(N, H, W, C\); return \(N, C, H, W\)"):
        from_arrays((x, y))
    assert from_arrays((x.permute(0, 3, 1, 2), y))[0].shape == (3, 8, 8)

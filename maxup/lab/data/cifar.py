"""CIFAR-10 and CIFAR-100 from their usual Python pickles, which are read as data and never run."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data import Root
from maxup.lab.data.find import find
from maxup.lab.data.images import Images
from maxup.lab.data.pickles import Bytes2d, read_pickle

PIXELS = 3 * 32 * 32
# Mean and std of each channel, as in the code that the paper builds on.
NORM10 = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
NORM100 = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


def load_cifar10(root: Root = None) -> tuple[Images, Images]:
    """50,000 and 10,000 images of 3 x 32 x 32 pixels in 10 classes."""
    folder = find("cifar10", root)
    classes = _classes(folder / "batches.meta", "label_names", 10)
    parts = [_part(folder / f"data_batch_{i}", "labels", 10) for i in range(1, 6)]
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    test = _part(folder / "test_batch", "labels", 10)
    return Images(x, y, classes, *NORM10), Images(*test, classes, *NORM10)


def load_cifar100(root: Root = None) -> tuple[Images, Images]:
    """50,000 and 10,000 images of 3 x 32 x 32 pixels in 100 classes; files with fewer give what they hold."""
    folder = find("cifar100", root)
    classes = _classes(folder / "meta", "fine_label_names", 100)
    train, test = (Images(*_part(folder / part, "fine_labels", 100), classes, *NORM100) for part in ("train", "test"))
    return train, test


def _part(path: Path, key: str, classes: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one file."""
    content = _dict(path)
    pixels, labels = content.get("data"), content.get(key)
    if not isinstance(pixels, Bytes2d) or pixels.columns != PIXELS or pixels.rows < 1:
        came = f"{pixels.rows} x {pixels.columns} bytes" if isinstance(pixels, Bytes2d) else type(pixels).__name__
        raise DataError(f"{path} holds {came} as 'data', not rows of {PIXELS} bytes; replace it by a fresh copy")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < classes for label in labels):
        raise DataError(f"{path} holds no list of classes 0 to {classes - 1} as {key!r}; replace it by a fresh copy")
    if len(labels) != pixels.rows:
        raise DataError(f"{path} holds {len(labels)} labels for {pixels.rows} images; replace it by a fresh copy")
    try:
        x = torch.frombuffer(pixels.copy(), dtype=torch.uint8)
    except UnicodeEncodeError as error:
        raise DataError(f"{path} holds characters that are no bytes as 'data'; replace it by a fresh copy") from error
    return x.view(-1, 3, 32, 32), torch.tensor(labels)


def _classes(path: Path, key: str, wanted: int) -> tuple[str, ...]:
    names = _dict(path).get(key)
    if not isinstance(names, list) or len(names) != wanted or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path} holds no list of {wanted} names as {key!r}; replace it by a fresh copy")
    return tuple(map(_text, names))


def _dict(path: Path) -> dict[str, Any]:
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dict; replace it by a fresh copy")
    return {_text(key): value for key, value in content.items()}


def _text(string: str | bytes) -> str:
    return string if isinstance(string, str) else string.decode("latin-1")

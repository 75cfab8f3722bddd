"""CIFAR-10 and CIFAR-100 from their usual Python pickles. The pickles are parsed as data and never executed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.errors import DataError, a_type
from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import find
from maxup.lab.data.pickles import ByteArray2d, read_pickle

if TYPE_CHECKING:
    from torch import Tensor

    from maxup.lab.data.images import Images

PIXELS = 3 * 32 * 32
# Mean and std per channel, as in the code that the paper builds on.
NORM10 = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
NORM100 = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
TRAIN10 = tuple(f"data_batch_{i}" for i in range(1, 6))


@register_data(
    "cifar10",
    folders=("cifar-10-batches-py", "."),
    files=(*TRAIN10, "test_batch", "batches.meta"),
    instructions="Unpack the archive cifar-10-python.tar.gz in data: it creates the folder cifar-10-batches-py with "
    "data_batch_1 to 5, test_batch and batches.meta.",
)
def load_cifar10(root: Root = None) -> "tuple[Images, Images]":
    """Load 50,000 training and 10,000 test images of 3 x 32 x 32 pixels in 10 classes."""
    import torch

    from maxup.lab.data.images import Images

    folder = find("cifar10", root)
    classes = _classes(folder / "batches.meta", "label_names", 10)
    parts = [_part(folder / file, "labels", 10) for file in TRAIN10]
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    test = _part(folder / "test_batch", "labels", 10)
    return Images(x, y, classes, *NORM10), Images(*test, classes, *NORM10)


@register_data(
    "cifar100",
    folders=("cifar-100-python", "."),
    files=("train", "test", "meta"),
    instructions="Unpack the archive cifar-100-python.tar.gz in data: it creates the folder cifar-100-python with "
    "train, test and meta.",
)
def load_cifar100(root: Root = None) -> "tuple[Images, Images]":
    """Load 50,000 training and 10,000 test images of 3 x 32 x 32 pixels in 100 classes. Files may have fewer images."""
    from maxup.lab.data.images import Images

    folder = find("cifar100", root)
    classes = _classes(folder / "meta", "fine_label_names", 100)
    train, test = (Images(*_part(folder / part, "fine_labels", 100), classes, *NORM100) for part in ("train", "test"))
    return train, test


def _part(path: Path, key: str, num_classes: int) -> "tuple[Tensor, Tensor]":
    """Read the images (N, 3, 32, 32) and labels (N,) of one file."""
    import torch

    content = _read_dict(path)
    pixels, labels = content.get("data"), content.get(key)
    if not isinstance(pixels, ByteArray2d) or pixels.columns != PIXELS or pixels.rows < 1:
        actual = f"{pixels.rows} x {pixels.columns} bytes" if isinstance(pixels, ByteArray2d) else type(pixels).__name__
        raise DataError(f"{path} has {actual} as 'data', not rows of {PIXELS} bytes; replace it with a fresh copy")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise DataError(
            f"{path} has no list of classes 0 to {num_classes - 1} as {key!r}; replace it with a fresh copy"
        )
    if len(labels) != pixels.rows:
        raise DataError(f"{path} has {len(labels)} labels for {pixels.rows} images; replace it with a fresh copy")
    try:
        x = torch.frombuffer(pixels.copy(), dtype=torch.uint8)
    except UnicodeEncodeError as error:
        raise DataError(f"{path} has characters that are not bytes as 'data'; replace it with a fresh copy") from error
    return x.view(-1, 3, 32, 32), torch.tensor(labels)


def _classes(path: Path, key: str, count: int) -> tuple[str, ...]:
    names = _read_dict(path).get(key)
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path} has no list of {count} names as {key!r}; replace it with a fresh copy")
    return tuple(map(_text, names))


def _read_dict(path: Path) -> dict[str, Any]:
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} has {a_type(content)}, not a dict; replace it with a fresh copy")
    return {_text(key): value for key, value in content.items()}


def _text(string: str | bytes) -> str:
    return string if isinstance(string, str) else string.decode("latin-1")

"""Fashion-MNIST from its four IDX files, zipped or not, as Debian's package dataset-fashion-mnist has them."""

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data import Root
from maxup.lab.data.find import file_in, find
from maxup.lab.data.images import Images

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MOST = 60_000  # images in the larger file: a header that promises more is not believed


def load_fashion_mnist(root: Root = None) -> tuple[Images, Images]:
    """60,000 and 10,000 images of 28 x 28 pixels in 10 classes."""
    folder = find("fashion_mnist", root)
    return _part(folder, "train"), _part(folder, "t10k")


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> Tensor:
    """The bytes of an IDX file, whole or not at all: (N, *shape).

    The file is: 00 00, 08 for bytes, the number of dimensions, each dimension in 4 bytes, big end first, the bytes.

    Args:
        path: The file; zipped where it ends in .gz.
        shape: What each example must have: () for labels, (28, 28) for images.
    """
    magic = bytes([0, 0, 8, 1 + len(shape)])
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if start != magic:
                raise DataError(
                    f"{path} begins with {start.hex(' ') or 'nothing'}, but an IDX file of bytes in {1 + len(shape)} "
                    f"dimensions with {magic.hex(' ')}; replace it by the usual file"
                )
            header = file.read(4 * (1 + len(shape)))
            sizes = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4))
            if len(header) < 4 * (1 + len(shape)) or sizes[1:] != shape or not 1 <= sizes[0] <= MOST:
                raise DataError(
                    f"{path} has a header of sizes {sizes}, but Fashion-MNIST has (N{''.join(f', {s}' for s in shape)})"
                    f" with N from 1 to {MOST}; replace it by the usual file"
                )
            wanted = math.prod(sizes)
            content = bytearray(file.read(wanted + 1))  # one more, to see whether the file ends there
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); replace it by a fresh copy") from error
    if len(content) != wanted:
        came = f"only {len(content)}" if len(content) < wanted else "more"
        raise DataError(f"{path} promises {wanted} bytes and holds {came}; replace it by a fresh copy")
    return torch.frombuffer(content, dtype=torch.uint8).view(sizes)


def _part(folder: Path, part: str) -> Images:
    x_path, y_path = (_file(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    x, y = read_idx(x_path, (28, 28))[:, None], read_idx(y_path).long()  # (N, 1, 28, 28), (N,)
    if len(x) != len(y):
        raise DataError(f"{y_path} holds {len(y)} labels for {len(x)} images in {x_path.name}; replace both")
    if int(y.max()) >= len(CLASSES):
        raise DataError(f"{y_path} holds the label {int(y.max())}, but classes are 0 to 9; replace it by a fresh copy")
    return Images(x, y, CLASSES, mean=(0.2860,), std=(0.3530,))


def _file(folder: Path, name: str) -> Path:
    return file_in(folder, name, zipped=True) or folder / name

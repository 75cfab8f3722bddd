"""Fashion-MNIST from its four IDX files, compressed or not."""

import gzip
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from maxup.errors import DataError
from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import file_in, find

if TYPE_CHECKING:
    from torch import Tensor

    from maxup.lab.data.images import Images

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MOST = 60_000  # images in the training file; a header with a larger number is invalid


@register_data(
    "fashion_mnist",
    folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "."),
    files=tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")),
    gzip=True,
    instructions="On Debian and Ubuntu: apt install dataset-fashion-mnist. Otherwise put the four usual files, "
    "train-images-idx3-ubyte.gz and so on, compressed or not, into data/fashion-mnist.",
)
def load_fashion_mnist(root: Root = None) -> "tuple[Images, Images]":
    """Load 60,000 training and 10,000 test images of 28 x 28 pixels in 10 classes."""
    folder = find("fashion_mnist", root)
    return _part(folder, "train"), _part(folder, "t10k")


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> "Tensor":
    """Read the bytes of an IDX file, (N, *shape).

    The format is: 00 00, 08 for bytes, the number of dimensions, each dimension in 4 bytes (big-endian), the data.

    Args:
        path: The file. It is decompressed if its suffix is .gz.
        shape: Required shape of an example: () for labels, (28, 28) for images.
    """
    import torch

    magic = bytes([0, 0, 8, 1 + len(shape)])
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if start != magic:
                raise DataError(
                    f"{path} starts with {start.hex(' ') or 'nothing'}, but an IDX file of bytes in {1 + len(shape)} "
                    f"dimensions starts with {magic.hex(' ')}; replace it with a fresh copy"
                )
            header = file.read(4 * (1 + len(shape)))
            sizes = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4))
            if len(header) < 4 * (1 + len(shape)) or sizes[1:] != shape or not 1 <= sizes[0] <= MOST:
                raise DataError(
                    f"{path} has sizes {sizes} in its header, but Fashion-MNIST has "
                    f"(N{''.join(f', {s}' for s in shape)}) with N from 1 to {MOST}; replace it with a fresh copy"
                )
            expected = math.prod(sizes)
            content = bytearray(file.read(expected + 1))  # one more byte, to notice a file that is too long
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); replace it with a fresh copy") from error
    if len(content) != expected:
        actual = f"only {len(content)}" if len(content) < expected else "more"
        raise DataError(f"{path} should have {expected} bytes of data but has {actual}; replace it with a fresh copy")
    return torch.frombuffer(content, dtype=torch.uint8).view(sizes)


def _part(folder: Path, part: str) -> "Images":
    from maxup.lab.data.images import Images

    x_path, y_path = (_file(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    x, y = read_idx(x_path, (28, 28))[:, None], read_idx(y_path).long()  # (N, 1, 28, 28), (N,)
    if len(x) != len(y):
        raise DataError(f"{y_path} has {len(y)} labels for {len(x)} images in {x_path.name}; replace both")
    if int(y.max()) >= len(CLASSES):
        raise DataError(f"{y_path} has the label {int(y.max())}, but classes are 0 to 9; replace it with a fresh copy")
    return Images(x, y, CLASSES, mean=(0.2860,), std=(0.3530,))


def _file(folder: Path, name: str) -> Path:
    return file_in(folder, name, gzip=True) or folder / name

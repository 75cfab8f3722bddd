"""Labelled images in files, a folder for each class, which are read when they are needed."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, first_names
from maxup.lab.data.images import normalize

if TYPE_CHECKING:
    from maxup.lab.data.folder_loader import FolderLoader

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


@dataclass(frozen=True, eq=False)
class Folder:
    """A set of labeled image files; as `Images`, but what its loader decodes them to is said here.

    Args:
        root: The folder that holds a folder for each class.
        names: File names within their class's folder as bytes, (N,): an array, which worker processes do not copy.
        y: Classes, int64, (N,).
        classes: The folders' names.
        mean: Mean of each channel, of pixels in [0, 1].
        std: Standard deviation of each channel, likewise.
        size: Height and width of a training image.
        test_size: Those in evaluation; default the same.
        crop_fraction: In evaluation the short side is first resized to test_size / crop_fraction.
        interpolation: How images are resized: "bilinear" or "bicubic".
        workers: Processes that decode, 0 for none; never more than there are cores.
        digest: SHA-256 of the classes and of the names and sizes of all files there; a subset keeps it.
    """

    root: Path
    names: np.ndarray = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    size: int = 224
    test_size: int | None = None
    crop_fraction: float = 0.875
    interpolation: Any = "bilinear"
    workers: int = 8
    digest: str = field(default="", repr=False)
    top: ClassVar[int] = 255

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one training image: (C, H, W)."""
        return 3, self.size, self.size

    def path(self, index: int) -> Path:
        """Where an image is."""
        return self.root / self.classes[int(self.y[index])] / os.fsdecode(self.names[index])

    def loader(self, batch_size: int, *, training: bool, **options: Any) -> "FolderLoader":
        """Batches: random crops, shuffled and equal on all ranks, in training; else centers, in order, each once."""
        from maxup.lab.data.folder_loader import FolderLoader

        return FolderLoader(self, batch_size, training=training, **options)

    def subset(self, indices: Tensor | Sequence[int]) -> "Folder":
        """These images, in this order."""
        rows = torch.as_tensor(indices).long()
        return replace(self, names=self.names[rows.numpy()], y=self.y[rows])

    def normalize(self, x: Tensor) -> Tensor:
        """(x / 255 - mean) / std, for bytes (..., C, H, W) on any device."""
        return normalize(x, self.mean, self.std, self.top)


def scan(root: Path, classes: tuple[str, ...] | None = None) -> Folder:
    """Find the images in the folders of the classes; other files, and names that begin with a dot, are passed over.

    Args:
        root: The folder that holds a folder for each class.
        classes: Those to expect, in their order; default all folders, sorted. A class may be missing, another not.
    """
    found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise DataError(
            f"{root} holds no folders; sort its images into a folder for each class, {root / 'CLASS' / 'name.JPEG'}"
        )
    classes = tuple(found) if classes is None else classes
    if strange := sorted(set(found) - set(classes)):
        raise DataError(
            f"{root} holds {first_names(strange)}, which are not classes of the training images; rename or remove them"
        )
    names = {name: _images(root / name) for name in found}
    if empty := [name for name in found if not names[name]]:
        raise DataError(f"{root} holds {first_names(empty)} without any image; fill or remove such folders")
    files = np.array([file for name in found for file in names[name]], dtype=bytes)
    number = {name: i for i, name in enumerate(classes)}
    y = torch.tensor([number[name] for name in found for _ in names[name]])
    return Folder(root, files, y, classes, digest=_digest(classes, names))


def _images(folder: Path) -> dict[bytes, int]:
    """The images' names, sorted, with their sizes in bytes."""
    entries = [entry for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES) and entry.is_file()]
    return dict(sorted((os.fsencode(e.name), e.stat().st_size) for e in entries if not e.name.startswith(".")))


def _digest(classes: tuple[str, ...], sizes: dict[str, dict[bytes, int]]) -> str:
    found = hashlib.sha256(b"\0".join(map(os.fsencode, classes)))
    for name, files in sizes.items():
        found.update(b"\0\0" + os.fsencode(name))
        for file, size in files.items():
            found.update(b"\0%b/%d" % (file, size))  # no name has a slash or a zero byte in it
    return found.hexdigest()

"""Labeled image files, one folder per class. They are decoded when they are needed."""

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
    """A set of labeled image files, and how to decode them.

    Args:
        root: The folder with one folder per class.
        names: File names inside the class folders as bytes, (N,). Worker processes do not copy an array.
        y: Classes, int64, (N,).
        classes: Names of the class folders.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel, of pixels in [0, 1].
        size: Height and width of a training image.
        test_size: Height and width in evaluation. Default: size.
        crop_fraction: In evaluation the short side is first resized to test_size / crop_fraction.
        interpolation: "bilinear" or "bicubic".
        workers: Worker processes that decode, at most one per core. 0 decodes in the main process.
        digest: SHA-256 of the classes and of the names and sizes of all files. A subset keeps the digest.
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
    dtype: ClassVar[torch.dtype] = torch.uint8
    in_unit_range: ClassVar[bool] = True  # x / top

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a training image, (C, H, W)."""
        return 3, self.size, self.size

    def path(self, index: int) -> Path:
        """Path of an image."""
        return self.root / self.classes[int(self.y[index])] / os.fsdecode(self.names[index])

    def loader(self, batch_size: int, *, training: bool, **options: Any) -> "FolderLoader":
        """Return a loader: shuffled random crops in training, otherwise center crops in order, each exactly once."""
        from maxup.lab.data.folder_loader import FolderLoader

        return FolderLoader(self, batch_size, training=training, **options)

    def subset(self, indices: Tensor | Sequence[int]) -> "Folder":
        """Return these images, in this order."""
        rows = torch.as_tensor(indices).long()
        return replace(self, names=self.names[rows.numpy()], y=self.y[rows])

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x / 255 - mean) / std, for bytes (..., C, H, W) on any device."""
        return normalize(x, self.mean, self.std, self.top)


def scan(root: Path, classes: tuple[str, ...] | None = None) -> Folder:
    """Find the images in the class folders. Other files, and names that start with a dot, are ignored.

    Args:
        root: The folder with one folder per class.
        classes: The allowed classes, in order; some may have no folder. Default: all folders, sorted.
    """
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise DataError(
            f"{root} has no class folders; put images in one folder per class, {root / 'CLASS' / 'name.jpg'}"
        )
    classes = tuple(folders) if classes is None else classes
    if unknown := sorted(set(folders) - set(classes)):
        raise DataError(
            f"{root} has folders that are not classes of the training images: {first_names(unknown)}; rename or "
            "remove them"
        )
    sizes = {name: _images(root / name) for name in folders}
    if empty := [name for name in folders if not sizes[name]]:
        if deeper := [name for name in empty if has_folders(root / name)]:
            raise DataError(
                f"{root / deeper[0]} has folders but no images, which must be directly in the class folders; set "
                "data.root to the folder that has the class folders, or move the images up"
            )
        raise DataError(f"{root} has folders without images: {first_names(empty)}; fill or remove them")
    names = np.array([file for name in folders for file in sizes[name]], dtype=bytes)
    index = {name: i for i, name in enumerate(classes)}
    y = torch.tensor([index[name] for name in folders for _ in sizes[name]])
    return Folder(root, names, y, classes, digest=_digest(classes, sizes))


def has_folders(folder: Path) -> bool:
    """Whether a folder has folders in it. Names that start with a dot are ignored."""
    with os.scandir(folder) as entries:
        return any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)


def _images(folder: Path) -> dict[bytes, int]:
    """Return the sorted names of the images, with their sizes in bytes."""
    entries = [entry for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES) and entry.is_file()]
    return dict(sorted((os.fsencode(e.name), e.stat().st_size) for e in entries if not e.name.startswith(".")))


def _digest(classes: tuple[str, ...], sizes: dict[str, dict[bytes, int]]) -> str:
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, classes)))
    for name, files in sizes.items():
        digest.update(b"\0\0" + os.fsencode(name))
        for file, size in files.items():
            digest.update(b"\0%b/%d" % (file, size))  # a file name has no slash and no NUL byte
    return digest.hexdigest()

"""Any folder of images, with one folder per class."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from maxup.errors import DataError
from maxup.lab.data.catalog import SPLITS, Root, register_data
from maxup.lab.data.find import find

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder


@register_data(
    "imagefolder",
    files=(),
    instructions="Set data.root to a folder with images in one folder per class, CLASS/*.jpg. It may have the folders "
    "train and val (or test) with the same classes; otherwise 20 % of the images of each class are the test set.",
)
def load_imagefolder(root: Root = None) -> "tuple[Folder, Folder | None] | tuple[Folder, Folder, Folder]":
    """Load a folder of images.

    Returns:
        The training and test images of the folders train and val, or train and test; the training, validation and test
        images of train, val and test; or all images and None, if there are only class folders.
    """
    from maxup.lab.data.folder import has_folders, scan

    folder = find("imagefolder", root)
    parts = [_parts(folder, names) for names in SPLITS.values()]
    if not any(map(has_folders, parts[0])):  # train may also be a class, of images of trains
        return _several_classes(scan(folder)), None
    for found in parts:
        if len(found) > 1:
            names = " and ".join(part.name for part in found)
            raise DataError(
                f"{folder} has the folders {names}, which mean the same part; merge them, or rename or remove one"
            )
    images = _several_classes(scan(parts[0][0]))
    held_out = [scan(part, images.classes) for found in parts[1:] for part in found]
    match held_out:
        case []:
            return images, None
        case [only]:
            return images, only
    return images, held_out[0], held_out[1]


def _parts(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the folders with one of these names, in any case."""
    entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [folder / name for name in entries if name.lower() in names]


def _several_classes(images: "Folder") -> "Folder":
    if len(images.classes) < 2:
        raise DataError(
            f"{images.root} has one class folder, {images.classes[0]}, but a classifier needs two or more; "
            "put images in one folder per class"
        )
    return images

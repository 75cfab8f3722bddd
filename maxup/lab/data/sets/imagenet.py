"""ImageNet, or some of its classes, in the usual folders: train/CLASS/*.JPEG and val/CLASS/*.JPEG."""

from typing import TYPE_CHECKING

from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import find

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder


@register_data(
    "imagenet",
    folders=("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."),
    files=("train", "val"),
    directories=True,
    instructions="After registering at image-net.org, unpack the training and validation images of ILSVRC 2012 to "
    "data/imagenet/train/CLASS/*.JPEG and data/imagenet/val/CLASS/*.JPEG; a folder may be a link.",
)
def load_imagenet(root: Root = None) -> "tuple[Folder, Folder]":
    """Load 1,281,167 training and 50,000 validation images in 1000 classes, or the part of them that exists."""
    return _load("imagenet", root)


@register_data(
    "imagenette",
    folders=("imagenette-subset", "imagenette2", "imagenette2-320", "imagenette2-160", "imagenette", "."),
    files=("train", "val"),
    directories=True,
    instructions="Unpack the archive imagenette2-320.tgz, ten classes of ImageNet, in data: it creates the folder "
    "imagenette2-320 with train/CLASS/*.JPEG and val/CLASS/*.JPEG.",
)
def load_imagenette(root: Root = None) -> "tuple[Folder, Folder]":
    """Load ten easy classes of ImageNet, or a part of their images."""
    return _load("imagenette", root)


def _load(name: str, root: Root) -> "tuple[Folder, Folder]":
    from maxup.lab.data.folder import scan

    folder = find(name, root)
    train = scan(folder / "train")
    return train, scan(folder / "val", train.classes)

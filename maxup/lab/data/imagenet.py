"""ImageNet, or some classes of it, in the usual folders: train/CLASS/*.JPEG and val/CLASS/*.JPEG."""

from maxup.lab.data import Root
from maxup.lab.data.find import find
from maxup.lab.data.folder import Folder, scan


def load_imagenet(root: Root = None) -> tuple[Folder, Folder]:
    """1,281,167 and 50,000 images in 1000 classes, or as many as there are."""
    return _load("imagenet", root)


def load_imagenette(root: Root = None) -> tuple[Folder, Folder]:
    """Ten classes of ImageNet that are easy to tell apart, or a part of their images."""
    return _load("imagenette", root)


def _load(name: str, root: Root) -> tuple[Folder, Folder]:
    folder = find(name, root)
    train = scan(folder / "train")
    return train, scan(folder / "val", train.classes)

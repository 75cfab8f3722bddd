"""Where data are looked for, and how to get what is not there."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from maxup.errors import DataError, unknown_name
from maxup.lab.data import Root

PACKAGES = {"digits": "sklearn", "text": "pydoc_data"}  # data sets inside a package
SYSTEM = (Path("/usr/share/datasets"),)  # where Debian's packages put theirs


@dataclass(frozen=True)
class Source:
    """A data set on disk."""

    folders: tuple[str, ...]
    """Where its files may be inside a place; the first folder that holds them all is taken."""
    files: tuple[str, ...]
    get: str
    """How to get it."""
    zipped: bool = False
    """Whether each file may also be there as .gz."""
    of_folders: bool = False
    """Whether its files are folders."""


SOURCES = {
    "digits": Source(
        folders=("datasets/data",),
        files=("digits.csv.gz",),
        get="They come with scikit-learn: pip install scikit-learn.",
    ),
    "fashion_mnist": Source(
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "."),
        files=tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")),
        get="On Debian and Ubuntu: apt install dataset-fashion-mnist. Elsewhere put the four usual files, "
        "train-images-idx3-ubyte.gz and so on, zipped or not, into data/fashion-mnist.",
        zipped=True,
    ),
    "cifar10": Source(
        folders=("cifar-10-batches-py", "."),
        files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        get="Unpack the archive cifar-10-python.tar.gz inside data: it makes the folder cifar-10-batches-py with "
        "data_batch_1 to 5, test_batch and batches.meta.",
    ),
    "cifar100": Source(
        folders=("cifar-100-python", "."),
        files=("train", "test", "meta"),
        get="Unpack the archive cifar-100-python.tar.gz inside data: it makes the folder cifar-100-python with train, "
        "test and meta.",
    ),
    "imagenet": Source(
        folders=("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."),
        files=("train", "val"),
        get="After registering at image-net.org, unpack the training and validation images of ILSVRC 2012 to "
        "data/imagenet/train/CLASS/*.JPEG and data/imagenet/val/CLASS/*.JPEG; a folder may be a link.",
        of_folders=True,
    ),
    "imagenette": Source(
        folders=("imagenette-subset", "imagenette2", "imagenette2-320", "imagenette2-160", "imagenette", "."),
        files=("train", "val"),
        get="Unpack the archive imagenette2-320.tgz, ten classes of ImageNet, inside data: it makes the folder "
        "imagenette2-320 with train/CLASS/*.JPEG and val/CLASS/*.JPEG.",
        of_folders=True,
    ),
    "ptb": Source(
        folders=("ptb", "penn", "simple-examples/data", "."),
        files=("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
        get="Put ptb.train.txt, ptb.valid.txt and ptb.test.txt, as Mikolov prepared them, into data/ptb.",
    ),
    "wikitext2": Source(
        folders=("wikitext-2", "wikitext2", "."),
        files=("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        get="Unpack the archive wikitext-2-v1.zip inside data: it makes the folder wikitext-2 with wiki.train.tokens, "
        "wiki.valid.tokens and wiki.test.tokens.",
    ),
    "text": Source(folders=(".",), files=("topics.py",), get="It comes with Python itself, as pydoc_data."),
}


def places(name: str, root: Root = None) -> list[Path]:
    """The folders a data set is looked for in, in order: root, MAXUP_DATA, ./data, the system's."""
    if name in PACKAGES:
        spec = find_spec(PACKAGES[name])  # finds the package without importing it
        return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    named = [Path(folder).expanduser() for folder in (root, os.environ.get("MAXUP_DATA")) if folder]
    return list(dict.fromkeys([*named, Path("data"), *SYSTEM]))


def locate(name: str, root: Root = None) -> Path | None:
    """The folder that holds all files of a data set, or None.

    Example:
        >>> locate("digits").name
        'data'
    """
    source = _source(name)
    return next((folder for folder in _folders(name, root) if not _lacks(folder, source)), None)


def find(name: str, root: Root = None) -> Path:
    """As `locate`, but what is not there is an error that says where it looked and how to get it."""
    if folder := locate(name, root):
        return folder
    source = _source(name)
    partial = ""
    for folder in _folders(name, root):
        lacking = _lacks(folder, source)
        if len(lacking) < len(source.files):
            partial = f" ({folder} holds a part of it, without {', '.join(lacking)})"
            break
    looked = ", ".join(map(str, places(name, root))) or "the installed packages"
    raise DataError(f"{name} is not in any of: {looked}{partial}. {missing(name, root)}")


def missing(name: str, root: Root = None) -> str:
    """How to get a data set, in a sentence or two, and where to put it: into data, or root.

    Example:
        >>> print(missing("digits"))
        They come with scikit-learn: pip install scikit-learn.
    """
    source = _source(name)
    if root is None:
        return source.get
    own = source.get.replace(f"data/{source.folders[0]}", str(root))
    return own.replace("inside data", f"inside {root}")


def file_in(folder: Path, file: str, *, zipped: bool) -> Path | None:
    """The file in that folder, or its .gz where that will do, or None."""
    names = (file, file + ".gz") if zipped else (file,)
    return next((folder / n for n in names if os.path.isfile(folder / n)), None)  # False where we may not look


def _source(name: str) -> Source:
    if name not in list(SOURCES):
        raise DataError(unknown_name(str(name), SOURCES, "data set"))
    return SOURCES[name]


def _folders(name: str, root: Root) -> list[Path]:
    return [place / folder for place in places(name, root) for folder in SOURCES[name].folders]


def _lacks(folder: Path, source: Source) -> list[str]:
    if source.of_folders:
        return [name for name in source.files if not os.path.isdir(folder / name)]
    return [file for file in source.files if file_in(folder, file, zipped=source.zipped) is None]

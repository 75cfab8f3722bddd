"""Find the files of a data set on disk, or explain how to get them."""

import os
from importlib.util import find_spec
from pathlib import Path

from maxup.errors import DataError
from maxup.lab.data.catalog import DataSet, Root, all_data_sets, get_data_set

SYSTEM = (Path("/usr/share/datasets"),)  # where Debian packages install data sets


def search_folders(name: str, root: Root = None) -> list[Path]:
    """Return the folders to search, in order: root, MAXUP_DATA, ./data, the system's folders."""
    if package := get_data_set(name).package:
        spec = find_spec(package)  # does not import the package
        return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    given = [Path(folder).expanduser() for folder in (root, os.environ.get("MAXUP_DATA")) if folder]
    return list(dict.fromkeys([*given, Path("data"), *SYSTEM]))


def locate(name: str, root: Root = None) -> Path | None:
    """Return the folder that has all files of a data set, or None."""
    data_set = get_data_set(name)
    if not data_set.files:  # any folder
        folder = Path(root).expanduser() if root else None
        return folder if folder and os.path.isdir(folder) else None
    return next((folder for folder in _folders(data_set, root) if not _missing_files(folder, data_set)), None)


def find(name: str, root: Root = None) -> Path:
    """Return the folder that has all files of a data set.

    Raises:
        DataError: There is none. The message lists the searched folders and explains how to get the data set.
    """
    if folder := locate(name, root):
        return folder
    data_set = get_data_set(name)
    if not data_set.files:
        problem = f"there is no folder {root}" if root else "data.root is not set"
        raise DataError(f"{name}: {problem}. {data_set.instructions}")
    partial = ""
    for folder in _folders(data_set, root):
        missing_files = _missing_files(folder, data_set)
        if len(missing_files) < len(data_set.files):
            partial = f" ({folder} lacks {', '.join(missing_files)})"
            break
    searched = ", ".join(map(str, search_folders(name, root))) or "the installed packages"
    raise DataError(f"{name} is not in any of: {searched}{partial}. {how_to_get(name, root)}")


def check_root(name: str, root: Root) -> None:
    """Raise a DataError if `root` is given but does not exist. For the data set text it may also be a file."""
    if root is None or (name in all_data_sets() and not get_data_set(name).files):  # which has its own message
        return
    path = Path(root).expanduser()
    if not path.is_dir() and not (name == "text" and path.is_file()):
        kind = "file or folder" if name == "text" else "folder"
        raise DataError(f"data.root: there is no {kind} {root}; correct it, or remove it to search the default ones")


def root_exists(name: str, root: Root) -> bool:
    """Whether `root` exists. Always true for data sets that are also searched in other folders."""
    is_root = name == "text" or (name in all_data_sets() and not get_data_set(name).files)
    return root is None or not is_root or Path(root).expanduser().exists()


def how_to_get(name: str, root: Root = None) -> str:
    """Return how to get a data set and where to put it: into ./data, or into root."""
    data_set = get_data_set(name)
    if root is None:
        return data_set.instructions
    instructions = data_set.instructions.replace(f"data/{data_set.folders[0]}", str(root))
    return instructions.replace("in data", f"in {root}")


def file_in(folder: Path, file: str, *, gzip: bool) -> Path | None:
    """Return the path of a file, or of its .gz if `gzip`, or None if it is missing."""
    names = (file, file + ".gz") if gzip else (file,)
    return next((folder / n for n in names if os.path.isfile(folder / n)), None)  # False if access is denied


def _folders(data_set: DataSet, root: Root) -> list[Path]:
    return [place / folder for place in search_folders(data_set.name, root) for folder in data_set.folders]


def _missing_files(folder: Path, data_set: DataSet) -> list[str]:
    if data_set.directories:
        return [name for name in data_set.files if not os.path.isdir(folder / name)]
    return [file for file in data_set.files if file_in(folder, file, gzip=data_set.gzip) is None]

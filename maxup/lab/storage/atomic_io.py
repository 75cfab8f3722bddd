"""Atomic writes and safe reads.

A file is written under a temporary name, synced and renamed, so a kill leaves the old file or the new one. Reading
rejects links, pipes and files of the wrong size, and nothing that is read is executed.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

NONFINITE = re.compile(r"(\\*)(?:nan|inf|-inf)")  # with backslashes, it is a string
LONG = 1 << 28  # maximum size of metrics.jsonl in bytes: a hundred million steps


def write(path: Path, data: bytes) -> None:
    """Write a new file and sync it. Call `sync` on the folder to make the file's name durable too."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not sync folders
            raise
    finally:
        os.close(descriptor)


def move_into_place(new: Path, final: Path) -> None:
    """Rename a folder. An existing `final` first becomes `final.old`, which stays readable after a kill in between."""
    old = final.with_name(f"{final.name}.old")
    if os.path.lexists(final):
        remove(old)
        final.rename(old)
    try:
        new.rename(final)
    except BaseException:
        with suppress(OSError):
            old.rename(final)
        raise


def replace(path: Path, data: bytes) -> None:
    """Write a file, or replace it, atomically."""
    new = temporary(path)
    remove(new)  # left by a dead process with the same pid
    try:
        write(new, data)
        new.replace(path)
    except BaseException as error:
        remove(new)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # report the final name, not the temporary one
        raise
    sync(path.parent)


def write_json(path: Path, document: Any) -> None:
    """Write an indented JSON file atomically. NaN and infinity become strings."""
    replace(path, (json.dumps(encode_nonfinite(document, escape=True), indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, *, most: int = 1 << 16) -> Any:
    """Read what `write_json` wrote. Raises a ValueError if the file is invalid or has more than `most` bytes."""
    return decode_nonfinite(parse(path.name, read(path, most=most)))


def encode_nonfinite(document: Any, *, escape: bool = False) -> Any:
    r"""Replace NaN and infinity, which JSON does not have, by strings.

    With `escape`, strings that look like these get a backslash, so that `decode_nonfinite` returns strings.

    Example:
        >>> encode_nonfinite([float("inf"), "inf"]), encode_nonfinite([float("inf"), "inf"], escape=True)
        (['inf', 'inf'], ['inf', '\\inf'])
    """
    if isinstance(document, dict):
        return {key: encode_nonfinite(value, escape=escape) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [encode_nonfinite(value, escape=escape) for value in document]
    if escape and isinstance(document, str) and NONFINITE.fullmatch(document):
        return f"\\{document}"
    return str(document) if isinstance(document, float) and not math.isfinite(document) else document


def decode_nonfinite(document: Any) -> Any:
    """Invert `encode_nonfinite` with `escape`. Tuples come back as lists."""
    if isinstance(document, dict):
        return {key: decode_nonfinite(value) for key, value in document.items()}
    if isinstance(document, list):
        return [decode_nonfinite(value) for value in document]
    if isinstance(document, str) and (match := NONFINITE.fullmatch(document)):
        return document[1:] if match[1] else float(document)
    return document


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync their names."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def temporary(path: Path) -> Path:
    """Return the name under which this process writes a file before it renames it."""
    return path.with_name(f".tmp-{os.getpid()}-{path.name}")


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove the temporary files of this process and of dead processes.

    `name` is a pattern of the final names. In a folder that others use too, match only files that you write.
    """
    for path in folder.glob(".tmp-*"):
        match = re.fullmatch(r"\.tmp-(\d+)-(.*)", path.name, re.ASCII)
        if match and fnmatchcase(match[2], name) and not _is_running_elsewhere(int(match[1])):
            remove(path)


def _is_running_elsewhere(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's process
        return True
    return pid != os.getpid()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its contents. Errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def check_regular(path: Path) -> None:
    """Raise a ValueError if a path exists but is not a regular file, such as a link or a pipe.

    Example:
        >>> check_regular(Path("/dev/null"))
        Traceback (most recent call last):
        ValueError: /dev/null is not a regular file; remove it, or put a regular file in its place
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path} is not a regular file; remove it, or put a regular file in its place")


def read(path: Path, expected: Any = None, *, most: int = 1 << 16) -> bytes:
    """Read a regular file. Links and pipes are rejected.

    The file must have the `expected` `{"size": ..., "sha256": ...}`, or at most `most` bytes if nothing is expected.
    """
    status = os.lstat(path)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if size > most if expected is None else type(expected) is not dict or expected.get("size") != size:
        raise ValueError(f"{path.name} has the wrong size, {size} bytes")
    data = path.read_bytes()
    if expected is not None and expected.get("sha256") != sha256(data):
        raise ValueError(f"{path.name} has the wrong checksum: it was changed or damaged")
    return data


def read_bytes(path: Path, *, most: int) -> bytes:
    """Read a regular file, or a link to one, such as a data file. Pipes and larger files are rejected."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not path.is_dir():  # the error of reading a folder is clear
        raise ValueError(f"{path.name} is not a regular file")
    if status.st_size > most:
        raise ValueError(f"{path.name} has {status.st_size:,} bytes; the limit is {most:,}")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a text file in UTF-8, such as a recipe. See `read_bytes`."""
    return read_bytes(path, most=1 << 24).decode("utf-8")


def sha256(data: bytes) -> str:
    """Return the digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def dump(document: Any) -> bytes:
    """Convert a document to strict JSON in ASCII.

    Example:
        >>> parse("state.json", dump({"é": [None, 0.1]}))
        {'é': [None, 0.1]}
    """
    return json.dumps(document, allow_nan=False).encode("ascii")


def parse(name: str, data: bytes) -> Any:
    """Parse strict JSON: NaN and duplicate keys are rejected."""

    def reject(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("it has a duplicate key")
        return dict(pairs)

    try:
        return json.loads(data.decode("ascii"), parse_constant=reject, object_pairs_hook=unique)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read: {error}") from error

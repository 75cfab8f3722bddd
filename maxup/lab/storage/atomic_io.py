"""Files that a kill cannot halve: written aside, synced, renamed. Files that may be hostile: read, never obeyed."""

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

LONG = 1 << 28  # bytes of metrics.jsonl at most: a hundred million steps


def write(path: Path, data: bytes) -> None:
    """Write a new file; when this returns it is on the disk, and what is missing is its name there: see `sync`."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(where)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is how some file systems say that folders need none
            raise
    finally:
        os.close(where)


def put(new: Path, final: Path) -> None:
    """Rename a folder into place. What stood there is `final.old` for a moment: a reader looks for both."""
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
    """Write a file, in place of one that may be there; at any moment the old or the new one is there, whole."""
    new = temporary(path)
    remove(new)  # of a process of the same number, long dead
    try:
        write(new, data)
        new.replace(path)
    except BaseException as error:
        remove(new)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # the name that the user knows; a write that failed has none
        raise
    sync(path.parent)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file for people to read too, whole or not at all; NaN and infinity become words.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder, "a.json"), {"a": [1, math.inf]})
        ...     print(Path(folder, "a.json").read_text().split())
        ...     print(read_json(Path(folder, "a.json")))
        ['{', '"a":', '[', '1,', '"inf"', ']', '}']
        {'a': [1, inf]}
    """
    replace(path, (json.dumps(to_words(document), indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote, or a ValueError: the file may be hostile."""
    return from_words(parse(path.name, read(path)))


def to_words(document: Any) -> Any:
    """A document for JSON, which knows no NaN and no infinity: they are words.

    Example:
        >>> to_words({"loss": math.nan, "epoch": 3})
        {'loss': 'nan', 'epoch': 3}
    """
    if isinstance(document, dict):
        return {key: to_words(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [to_words(value) for value in document]
    return str(document) if isinstance(document, float) and not math.isfinite(document) else document


def from_words(document: Any) -> Any:
    """What `to_words` was given; lists for tuples.

    Example:
        >>> from_words({"loss": "nan", "epoch": 3})
        {'loss': nan, 'epoch': 3}
    """
    if isinstance(document, dict):
        return {key: from_words(value) for key, value in document.items()}
    if isinstance(document, list):
        return [from_words(value) for value in document]
    return float(document) if document in ("nan", "inf", "-inf") else document


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it that are missing; when this returns their names are on the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     make_folder(Path(place, "a", "b"))
        ...     Path(place, "a", "b").is_dir()
        True
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def temporary(path: Path) -> Path:
    """Where this process writes a path before it renames it."""
    return path.with_name(f".tmp-{os.getpid()}-{path.name}")


def sweep(folder: Path, name: str = "*") -> None:
    """Remove temporary files of this process and of dead ones.

    Args:
        folder: Where they are.
        name: Pattern of the final names. In a folder that others may use too, name only files that you write.
    """
    for path in folder.glob(".tmp-*"):
        match = re.fullmatch(r"\.tmp-(\d+)-(.*)", path.name, re.ASCII)
        if match and fnmatchcase(match[2], name):
            pid = int(match[1])
            try:
                os.kill(pid, 0)
                dead = pid == os.getpid()
            except PermissionError:  # another user's, alive
                dead = False
            except (ProcessLookupError, OverflowError):
                dead = True
            if dead:
                remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def check_regular(path: Path) -> None:
    """A ValueError where a run's own file is there and is not a file: a link would be followed, a pipe waited for.

    Example:
        >>> check_regular(Path("/dev/null"))
        Traceback (most recent call last):
        ValueError: /dev/null is not a regular file; remove it, or put a regular file in its place
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path} is not a regular file; remove it, or put a regular file in its place")


def read(path: Path, promise: Any = None, *, most: int = 1 << 16) -> bytes:
    """A whole regular file: no link to elsewhere, no pipe to wait for.

    Args:
        path: The file.
        promise: The `{"size": ..., "sha256": ...}` it must have.
        most: The largest size in bytes of a file without a promise.
    """
    status = os.lstat(path)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if size > most if promise is None else type(promise) is not dict or promise.get("size") != size:
        raise ValueError(f"{path.name} has a wrong size, {size} bytes")
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(size)
    if promise is not None and promise.get("sha256") != sha256(data):
        raise ValueError(f"{path.name} has changed since it was written")
    return data


def read_bytes(path: Path, *, most: int) -> bytes:
    """The content of a regular file, or of a link to one, such as data: no pipe to wait for, no file without end.

    Args:
        path: The file.
        most: Its largest size in bytes.

    Example:
        >>> read_bytes(Path("/dev/zero"), most=100)
        Traceback (most recent call last):
        ValueError: zero is not a regular file
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not path.is_dir():  # reading a folder has a sentence of its own
        raise ValueError(f"{path.name} is not a regular file")
    if status.st_size > most:
        raise ValueError(f"{path.name} has {status.st_size:,} bytes, and at most {most:,} are read")
    return path.read_bytes()


def read_text(path: Path, *, most: int = 1 << 24) -> str:
    """The text of a file in UTF-8, such as a recipe; see `read_bytes`."""
    return read_bytes(path, most=most).decode("utf-8")


def sha256(data: bytes) -> str:
    """The digest as 64 characters."""
    return hashlib.sha256(data).hexdigest()


def dump(document: Any) -> bytes:
    """Strict JSON, in ASCII.

    Example:
        >>> parse("state.json", dump({"é": [None, 0.1]}))
        {'é': [None, 0.1]}
    """
    return json.dumps(document, allow_nan=False).encode("ascii")


def parse(name: str, data: bytes) -> Any:
    """The document in strict JSON: no NaN, no key twice.

    Example:
        >>> parse("state.json", b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: state.json cannot be read: it has a key twice
    """

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("it has a key twice")
        return dict(pairs)

    try:
        return json.loads(data.decode("ascii"), parse_constant=refuse, object_pairs_hook=once)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read: {error}") from error

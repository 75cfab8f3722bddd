"""Locks on folders and files. A lock ends with its process, even if the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from maxup.errors import CheckpointError, error_message
from maxup.lab.storage.atomic_io import check_regular


@contextmanager
def locked(folder: str | os.PathLike[str], name: str = "") -> Iterator[None]:
    """Lock a folder, or one file in it, against other processes. Forked children do not hold the lock.

    Args:
        folder: The folder. It is created if it is missing.
        name: The name of the file to lock. Default: lock the folder.

    Raises:
        CheckpointError: Another process holds the lock, or the lock file cannot be written.
    """
    path = Path(folder, f".{name}.lock" if name else ".lock")
    lock = FileLock(path, blocking=False, fallback_to_soft=False)  # a soft lock would outlive a killed process
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        lock.acquire()
        path.write_text(str(os.getpid()))
    except Timeout:
        holder = _read_holder(path)
        raise CheckpointError(f"{Path(folder, name)} is in use by process {holder}; wait for it, or stop it") from None
    except (OSError, ValueError) as error:
        lock.release()
        raise CheckpointError(f"{Path(folder, name)} cannot be locked: {error_message(error)}") from error
    try:
        yield
    finally:
        if name and lock.is_locked:  # False in a forked child
            path.unlink(missing_ok=True)
        lock.release()


def _read_holder(path: Path) -> str:
    try:
        text = path.read_bytes()[:20].decode()
    except (OSError, ValueError):
        return "?"
    return text if text.isdecimal() else "?"

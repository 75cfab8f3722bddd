"""Act at the n-th file operation below a folder: kill the process, or raise an error."""

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

EVENTS = (
    "open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.listdir", "os.scandir", "os.link",
    "os.symlink", "shutil.rmtree", "pathlib.Path.glob",
)  # fmt: skip
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES)


def kill() -> NoReturn:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def fail(number: int) -> Callable[[], NoReturn]:
    """Raise what the system raises."""

    def act() -> NoReturn:
        raise OSError(number, os.strerror(number))

    return act


def at(folder: Path, point: int, act: Callable[[], Any]) -> Callable[[], int]:
    """Count what this process does to files below a folder, from now to its end; before the n-th operation, act.

    A write acts after half of it is in the file. Opening, renaming, listing and removing are seen through Python's
    audit events, whoever does it; reads, writes and syncs by wrapping files as they are opened. Returns a function that
    says how many there were.
    """
    below, count = str(folder), 0

    def step(before: Callable[[], Any] = lambda: None) -> None:
        nonlocal count
        count += 1
        if count == point + 1:
            before()
            act()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and (_within(args[0], below) or (event in ("os.remove", "os.rmdir") and args[-1] != -1)):
            step()

    def opened(name: Any, *args: Any, **kwargs: Any) -> Any:
        file = plain_open(name, *args, **kwargs)
        if isinstance(name, int) or _within(name, below):
            _wrap(file, step)
        return file

    def synced(number: int) -> None:
        step()
        plain_sync(number)

    plain_open, plain_sync = io.open, os.fsync
    builtins.open = io.open = opened
    os.fsync = synced
    sys.addaudithook(hook)
    return lambda: count


def _within(name: Any, below: str) -> bool:
    return isinstance(name, str | bytes | os.PathLike) and os.fsdecode(name).startswith(below)


def _wrap(file: Any, step: Callable[..., None]) -> None:
    """Let a file's reads and writes count."""
    write, read = file.write, file.read

    def half(data: Any) -> int:
        def begin() -> None:
            write(data[: len(data) // 2])
            file.flush()

        step(begin)
        return int(write(data))

    def some(*size: int) -> Any:
        step()
        return read(*size)

    file.write, file.read = half, some

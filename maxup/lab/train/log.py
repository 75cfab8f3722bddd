"""What a run tells: metrics.jsonl always, trackers through Accelerate, and progress for whoever watches."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from maxup.errors import RunError, error_message
from maxup.lab.storage.atomic_io import LONG, check_regular, from_words, read, to_words


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A sentence where a file of a run cannot be written, because the disk is full, say.

    Example:
        >>> with writing(Path("run.json")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        maxup.errors.RunError: could not write run.json: No space left on device; what is saved stays: \
make room, and the same command goes on
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write {path}: {error_message(error)}; what is saved stays: make room, and the same command "
            "goes on"
        ) from error


class Metrics:
    """metrics.jsonl: one line a record, in the order of steps, cut back to a checkpoint when a run goes on.

    `shortened` says whether records from before that checkpoint are missing, `last_step` is the step of the last one
    that was there.

    Args:
        path: The file.
        size: Its length in bytes at the checkpoint the run continues from; what is behind it is cut off.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        check_regular(path)
        with writing(path):
            path.touch()
            kept = read(path, most=LONG)[:size]
            kept = kept[: kept.rfind(b"\n") + 1]  # where somebody shortened it, back to the end of a line
            records = _records(kept, path)  # refused before anything is cut off
            self.shortened = len(kept) < size
            self.last_step = records[-1]["step"] if records else 0
            os.truncate(path, len(kept))
            self.file: TextIO = path.open("a")

    def write(self, **record: Any) -> None:
        """Append a record."""
        with writing(self.path):
            self.file.write(json.dumps(to_words(record)) + "\n")

    def flush(self) -> int:
        """Put everything on disk and return the file's length, for the checkpoint to remember."""
        with writing(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        """Let go of the file; what was not flushed, no checkpoint remembers, and it may be lost."""
        with suppress(OSError):
            self.file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl holds, or a sentence where a line is no record.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     metrics = Metrics(Path(folder, "metrics.jsonl"))
        ...     metrics.write(step=1, loss=0.5)
        ...     metrics.file.close()
        ...     read_records(Path(folder, "metrics.jsonl"))
        [{'step': 1, 'loss': 0.5}]
    """
    return _records(read(path, most=LONG), path)


def _records(held: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in held.decode().splitlines()]
    except (ValueError, RecursionError):
        records = [None]
    if not all(isinstance(record, dict) and type(record.get("step")) is int for record in records):
        raise ValueError(f"{path} has a line that is no record; remove it, and the run goes on without its past lines")
    return [from_words(record) for record in records]

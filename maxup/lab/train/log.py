"""The records of a run: metrics.jsonl while it trains, and run.json when it is finished."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from maxup.errors import RunError, error_message
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage.atomic_io import (
    LONG,
    check_regular,
    decode_nonfinite,
    encode_nonfinite,
    read,
    read_json,
    write_json,
)


@contextmanager
def report_disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a RunError.

    Example:
        >>> with report_disk_errors(Path("run.json")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        maxup.errors.RunError: could not write run.json: No space left on device; the checkpoints are safe: \
free some space and resume with the same command
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write {path}: {error_message(error)}; the checkpoints are safe: free some space and resume "
            "with the same command"
        ) from error


class Metrics:
    """metrics.jsonl: one record per line, ordered by step.

    Args:
        size: Its length in bytes at the checkpoint from which the run resumes. The rest is cut off.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        check_regular(path)
        with report_disk_errors(path):
            path.touch()
            kept = read(path, most=LONG)[:size]
            kept = kept[: kept.rfind(b"\n") + 1]  # if it was truncated, back to the end of a line
            records = _parse(kept, path)  # reject the file before changing it
            self.truncated = len(kept) < size
            self.last_step = records[-1]["step"] if records else 0
            os.truncate(path, len(kept))
            self.file: TextIO = path.open("a")

    def missing(self, recorded: int) -> str:
        """Return a message if records up to the checkpoint's last one are missing, otherwise ""."""
        if not self.truncated:
            return ""
        first = self.last_step + 1
        which = f"of steps {first} to {recorded}" if first <= recorded else f"up to step {recorded}"
        return f"{self.path} was truncated: records {which} are missing"

    def write(self, **record: Any) -> None:
        with report_disk_errors(self.path):
            self.file.write(json.dumps(encode_nonfinite(record, escape=True)) + "\n")

    def flush(self) -> int:
        """Sync the file to disk and return its length, which a checkpoint stores."""
        with report_disk_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        """Close the file. Records after the last flush may be lost; no checkpoint depends on them."""
        with suppress(OSError):
            self.file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl. Raises a ValueError if a line is not a record."""
    return _parse(read(path, most=LONG), path)


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write run.json."""
    with report_disk_errors(folder / "run.json"):
        write_json(folder / "run.json", record)


def read_record(folder: Path, recipe: Recipe, step: int) -> dict[str, Any] | None:
    """Return run.json, or None if it does not exist or is of another recipe or step.

    The place of the data, the workers and `eval_every` may differ, as those of a resumed run may.
    """
    try:
        record = read_json(folder / "run.json")
        changed = difference(record["recipe"], recipe, ignore=("data.root", "data.workers", "eval_every"))
        same = not changed and record["steps"] == step
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(record) if same else None


def _parse(text: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in text.decode().splitlines()]
    except (ValueError, RecursionError):
        records = [None]
    if not all(isinstance(record, dict) and type(record.get("step")) is int for record in records):
        raise ValueError(f"{path} has an invalid line; remove the file to resume without the earlier metrics")
    return [decode_nonfinite(record) for record in records]

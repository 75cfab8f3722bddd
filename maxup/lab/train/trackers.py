"""Trackers of Accelerate: TensorBoard, W&B, MLflow and others get the records of metrics.jsonl.

When a run resumes, tracking starts over with all records so far, so that no step appears twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType

from maxup.errors import RunError, format_error, unknown_name
from maxup.lab.storage.atomic_io import remove, temporary, write
from maxup.lab.train.log import read_records, report_disk_errors

KNOWN = sorted(str(kind) for kind in LoggerType if kind != LoggerType.ALL)
EXTRA = ("wandb", "mlflow")  # installed by `pip install '.[track]'`


def check_trackers(names: Sequence[str]) -> None:
    """Raise a RunError if a tracker is unknown or its package is not installed.

    Example:
        >>> check_trackers(["tensorboard"])
        >>> check_trackers(["wand"])
        Traceback (most recent call last):
        maxup.errors.RunError: tracker 'wand' is unknown; did you mean 'wandb'?
    """
    for name in names:
        if name not in KNOWN:
            raise RunError(unknown_name(name, KNOWN, "tracker"))
        if LoggerType(name) not in get_available_trackers():
            package = "'.[track]'" if name in EXTRA else name.replace("_", "-")
            raise RunError(f"tracker {name!r} needs a package that is not installed; pip install {package}")


def start_trackers(accelerator: Accelerator, folder: Path) -> None:
    """Start tracking, and replay the records so far. Earlier TensorBoard events are removed."""
    if not accelerator.log_with:
        return
    if accelerator.is_main_process:
        remove(folder / "maxup")
        _check_disk(folder)
    name = f"{folder.parent.name}-{folder.name}".strip("-")
    settings = {"wandb": {"name": name, "dir": str(folder)}, "mlflow": {"run_name": name}}
    try:
        with _tracker_errors():
            accelerator.init_trackers("maxup", init_kwargs=settings)
    except RunError:
        accelerator.trackers = []  # trackers that failed to start cannot be closed
        raise
    if accelerator.is_main_process:
        for record in read_records(folder / "metrics.jsonl"):
            track(accelerator, record)


def track(accelerator: Accelerator, record: dict[str, Any]) -> None:
    """Log a record of metrics.jsonl."""
    with _tracker_errors():
        accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])


def _check_disk(folder: Path) -> None:
    """Raise a RunError if the disk is full: TensorBoard writes in a thread, whose errors cannot be caught."""
    probe = temporary(folder / "room")
    try:
        with report_disk_errors(folder / "maxup"):
            write(probe, bytes(1 << 16))
    finally:
        remove(probe)


@contextmanager
def _tracker_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RunError(
            f"a tracker failed ({format_error(error)[:200]}); fix that, or use --trackers none: "
            "the run resumes from its last checkpoint"
        ) from error

"""Accelerate's trackers: TensorBoard, W&B, MLflow and the rest get the records that metrics.jsonl has.

Whenever a run goes on, tracking begins anew and is told all records so far, so that no step appears twice.
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
from maxup.lab.train.log import read_records, writing

KNOWN = sorted(str(kind) for kind in LoggerType if kind != LoggerType.ALL)
EXTRA = ("wandb", "mlflow")  # what `pip install '.[track]'` brings


def check_trackers(names: Sequence[str]) -> None:
    """A sentence about a tracker that Accelerate does not know, or whose package is not here.

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
            raise RunError(f"tracker {name!r} needs a package that is not here; pip install {package}")


def start_trackers(accelerator: Accelerator, folder: Path) -> None:
    """Begin tracking, and tell the records so far; TensorBoard's events of before are removed."""
    if not accelerator.log_with:
        return
    if accelerator.is_main_process:
        remove(folder / "maxup")  # not what a link leads to
        _look_for_room(folder)
    name = f"{folder.parent.name}-{folder.name}".strip("-")
    about = {"wandb": {"name": name, "dir": str(folder)}, "mlflow": {"run_name": name}}
    try:
        with _sentence():
            accelerator.init_trackers("maxup", init_kwargs=about)
    except RunError:
        accelerator.trackers = []  # those half begun cannot be ended
        raise
    if accelerator.is_main_process:
        for record in read_records(folder / "metrics.jsonl"):
            track(accelerator, record)


def track(accelerator: Accelerator, record: dict[str, Any]) -> None:
    """Tell the trackers a record of metrics.jsonl."""
    with _sentence():
        accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])


def _look_for_room(folder: Path) -> None:
    """TensorBoard writes in a thread, whose errors nobody can catch: a disk that is full already is told before."""
    probe = temporary(folder / "room")
    try:
        with writing(folder / "maxup"):
            write(probe, bytes(1 << 16))
    finally:
        remove(probe)


@contextmanager
def _sentence() -> Iterator[None]:
    """For what goes wrong in other people's packages, or between them and their servers."""
    try:
        yield
    except Exception as error:
        raise RunError(
            f"a tracker failed ({format_error(error)[:200]}); fix that, or use --trackers none: "
            "the run goes on from its last checkpoint"
        ) from error

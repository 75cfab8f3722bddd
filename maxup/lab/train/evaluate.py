"""Measure a model on the splits of a task."""

from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn

from maxup.errors import RunError


def evaluate_splits(task: Any, model: nn.Module, splits: Iterable[str], accelerator: Accelerator) -> dict[str, float]:
    """Return the metrics of some splits by name, such as "test_accuracy". Every process evaluates its share."""
    if accelerator.num_processes > 1:  # every process has its own BatchNorm statistics; those of rank 0 are saved
        broadcast(list(model.buffers()))
    metrics = {split: evaluate_split(task, model, split, accelerator)[0] for split in splits}
    return {f"{split}_{name}": value for split, found in metrics.items() for name, value in found.items()}


def evaluate_split(
    task: Any, model: nn.Module, split: str, accelerator: Accelerator | None = None
) -> tuple[dict[str, float], int]:
    """Return the metrics of one split and the number of its examples.

    Raises:
        RunError: No image of the split can be read.
    """
    sums, count = task.evaluate(model, split)
    if accelerator is not None:
        totals = torch.tensor([*sums.values(), count], dtype=torch.double, device=accelerator.device)
        *reduced, count = accelerator.reduce(totals, "sum").tolist()
        sums = dict(zip(sums, reduced, strict=True))
    if not count:
        raise RunError(f"none of the {split} images can be read, such as {min(task.skipped())}")
    return task.report_metrics({metric: float(total) / count for metric, total in sums.items()}), int(count)

"""Training: one loop for every task, resumable at every step with the same command.

A step is the task's own (`task.step(model, batch) -> Outcome`); the loop adds processes and precision (Accelerate), the
optimiser, the schedule, checkpoints, and what is told to the user.
"""

import copy
import json
import random
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from maxup.engine import checkpoint
from maxup.engine.environment import environment
from maxup.engine.log import Metrics, Progress
from maxup.engine.optim import create_optimizer, learning_rate, set_learning_rate
from maxup.recipes.schema import Recipe
from maxup.tasks.vision import Vision


class RunError(RuntimeError):
    """A run that cannot go on, in one sentence."""


class Interrupted(RunError):
    """Asked to stop; the state is saved."""


def train(
    recipe: Recipe, folder: Path, *, save_every: float = 60.0, trackers: list[str] | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Train a recipe in a folder, going on where an earlier call stopped.

    Args:
        recipe: What to train.
        folder: The run's own folder; the same folder and recipe go on where they stopped.
        save_every: Seconds between checkpoints within an epoch; every epoch ends with one.
        trackers: Accelerate's trackers, such as ["tensorboard"].
        quiet: Show no progress.

    Returns:
        What is also written to run.json: the metrics of the last and the best epoch, seed, environment, recipe, seconds.
    """
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=recipe.optim.accumulate,
        log_with=list(trackers or []),
        project_dir=folder,
    )
    folder.mkdir(parents=True, exist_ok=True)
    alone = checkpoint.locked(folder) if accelerator.is_main_process else nullcontext()
    with alone, _asked_to_stop() as asked:
        return _Run(recipe, folder, accelerator, quiet=quiet or not accelerator.is_main_process).go(asked, save_every)


class _Run:
    """The state of a run: everything a checkpoint holds."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
        self.task = Vision(recipe, accelerator.device, **ranks)
        optimizer = create_optimizer(self.task.model, recipe.optim)
        self.model, self.optimizer = accelerator.prepare(self.task.model, optimizer)
        self.ema = copy.deepcopy(self.task.model).requires_grad_(False) if recipe.optim.ema else None
        self.step, self.seconds, self.best = 0, 0.0, {"epoch": -1, "accuracy": -1.0}
        self.history: list[dict[str, Any]] = []

    # --- training

"""Training: one loop for every task, resumable at every step with the same command.

A step is the task's own (`task.step(model, batch) -> Outcome`); the loop adds processes and precision (Accelerate), the
optimiser, the schedule, checkpoints, and what is told to the user.
"""

import copy
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from torch import Tensor, nn

from maxup.engine.capture import Captured, reason_against
from maxup.engine.checkpoint import locked
from maxup.engine.compiled import compile_blocks
from maxup.engine.durable import write_json
from maxup.engine.environment import environment
from maxup.engine.log import Metrics, Progress
from maxup.engine.optim import average, create_optimizer, learning_rate, set_learning_rate
from maxup.engine.resume import resume, save
from maxup.engine.stop import InterruptedRunError, RunError, asked_to_stop
from maxup.engine.trackers import start_trackers
from maxup.recipes.schema import Recipe
from maxup.tasks.vision import Vision

LOG_EVERY = 50


def train(
    recipe: Recipe,
    folder: Path,
    *,
    save_every: float = 60.0,
    save_best: bool = True,
    trackers: list[str] | None = None,
    quiet: bool = False,
    model_from: Callable[..., nn.Module] | None = None,
    data_from: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Train a recipe in a folder, going on where an earlier call stopped.

    Args:
        recipe: What to train.
        folder: The run's own folder; the same folder and recipe go on where they stopped.
        save_every: Seconds between checkpoints; the best and the last epoch end with one in any case.
        save_best: Off, the best epoch is not saved for being the best.
        trackers: Accelerate's trackers, such as ["tensorboard"].
        quiet: Show no progress.
        model_from: Builds the network instead of the recipe's: (shape, classes, **model.args).
        data_from: Returns the data instead of the recipe's: (x, y) or (x, y, x_test, y_test), images as bytes.

    Returns:
        What is also written to run.json: metrics of the last and the best epoch, seed, environment, recipe, seconds in
        all, and seconds of training alone, without evaluation and checkpoints.
    """
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        cpu=not torch.cuda.is_available(),
        log_with=trackers or None,
        project_dir=folder,
    )
    folder.mkdir(parents=True, exist_ok=True)
    alone = locked(folder) if accelerator.is_main_process else nullcontext()
    with alone, asked_to_stop() as asked:
        quiet = quiet or not accelerator.is_main_process
        own = {"model_from": model_from, "data_from": data_from}
        run = _Run(recipe, folder, accelerator, quiet=quiet, **own)
        try:
            return run.go(asked, save_every, save_best)
        finally:
            run.close()


class _Run:
    """The state of a run, and the loop over it."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool, **own: Any) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        set_seed(recipe.seed)  # the same weights in every process
        rank, world_size = accelerator.process_index, accelerator.num_processes
        self.task = Vision(recipe, accelerator.device, rank=rank, world_size=world_size, **own)
        set_seed(recipe.seed, device_specific=True)  # other dropout masks in every process
        optimizer = create_optimizer(self.task.model, recipe.optim)
        self.model, self.optimizer = accelerator.prepare(self.task.model, optimizer)
        wanted = recipe.compile and accelerator.device.type == "cuda"
        self.compiled = compile_blocks(self.task.model) if wanted else 0
        self.ema = copy.deepcopy(self.task.model).requires_grad_(False) if recipe.optim.ema else None
        self.step, self.recorded = 0, 0
        self.seconds, self.training_seconds = 0.0, 0.0  # in all, and in steps alone
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.loss = torch.zeros((), device=accelerator.device)  # sum since the last record
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=LOG_EVERY)  # examples and loss of the latest steps
        self.total = recipe.epochs * len(self.task.loader)
        self.update, self.whole = self._capture(), True
        self.metrics: Metrics | None = None

    def go(self, asked: Callable[[], bool], save_every: float, save_best: bool) -> dict[str, Any]:
        """Train to the end, or until asked to stop."""
        going_on = resume(self)
        if self.accelerator.is_main_process:
            self.metrics = Metrics(self.folder / "metrics.jsonl", going_on)
        start_trackers(self.accelerator, self.folder)
        loader, saved, begun = self.task.loader, time.monotonic(), time.monotonic() - self.seconds
        with Progress(self.total, self.step, quiet=self.quiet) as progress:
            if self.accelerator.device.type == "cuda":
                progress.say(f"step as one CUDA graph: {'no, ' + self.not_captured if self.not_captured else 'yes'}")
                if self.recipe.compile:
                    progress.say(f"blocks compiled: {self.compiled or 'none, since none repeats'}")
            while loader.epoch < self.recipe.epochs:
                epoch = loader.epoch
                self.model.train()
                tick = time.monotonic()
                for batch in loader:
                    whole = self._step(batch)
                    self.seconds = time.monotonic() - begun
                    if self.step % LOG_EVERY == 0:
                        self._record()
                    self.training_seconds += time.monotonic() - tick
                    if progress.due():
                        text = f"epoch {epoch + 1}/{self.recipe.epochs}  loss {float(self.recent[-1][1]):.4f}"
                        progress.show(self.step, text, self.recipe.batch_size)
                    if whole and (self._agree(asked()) or self._agree(time.monotonic() - saved > save_every)):
                        save(self)
                        saved = time.monotonic()
                        if self._agree(asked()):
                            raise InterruptedRunError(
                                f"stopped at step {self.step} of {self.total}; saved in {self.folder}: "
                                "the same command goes on from there"
                            )
                    tick = time.monotonic()
                self._record()
                self.training_seconds += time.monotonic() - tick
                better = self._end_of_epoch(epoch, progress)
                better = better and save_best
                if better or loader.epoch == self.recipe.epochs or self._agree(time.monotonic() - saved > save_every):
                    save(self, best=better)
                    saved = time.monotonic()
        return self._finish()

    def _step(self, batch: tuple[Tensor, Tensor, Tensor]) -> bool:
        """One batch; whether it ended with an update of the weights."""
        set_learning_rate(self.optimizer, learning_rate(self.recipe.optim, self.step / self.total))
        self.whole = (self.step + 1) % self.recipe.optim.accumulate == 0 or (self.step + 1) % len(self.task.loader) == 0
        loss = self.update(batch)
        self.recent.append((batch[0], loss))
        self.loss += loss
        self.step += 1
        return self.whole

    def _update(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """What happens on the device: the loss, its gradient and, at the end of an accumulation, new weights."""
        optim, accelerator = self.recipe.optim, self.accelerator
        with nullcontext() if self.whole else accelerator.no_sync(self.model):
            outcome = self.task.step(self.model, batch)
            if outcome.loss.device.type == "cpu" and not bool(outcome.loss.isfinite()):
                self._not_finite(batch[0], outcome.loss.detach())  # before it reaches the weights
            accelerator.backward(outcome.loss / optim.accumulate)
        if self.whole:
            if optim.clip is not None:
                accelerator.clip_grad_norm_(self.model.parameters(), optim.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.ema is not None and optim.ema:
                average(self.ema, accelerator.unwrap_model(self.model), optim.ema)
        return outcome.loss.detach()

    def _check_finite(self) -> None:
        """Look at the latest losses, which makes a GPU wait."""
        for examples, loss in self.recent:
            if not bool(loss.isfinite()):
                self._not_finite(examples, loss)

    def _not_finite(self, examples: Tensor, loss: Tensor) -> None:
        """Stop, naming the examples."""
        if self.accelerator.num_processes == 1:
            save(self)
        raise RunError(
            f"the loss became {float(loss)} at about step {self.step}, in the batch of training examples "
            f"{examples.tolist()}; the state is saved in {self.folder}: lower optim.lr, or look at the data"
        )

    def _record(self) -> None:
        """A line about the steps since the last one."""
        since = self.step - self.recorded
        if not since:
            return
        self._check_finite()
        loss = float(self.accelerator.reduce(self.loss, "mean")) / since
        self._write(step=self.step, train_loss=loss, lr=learning_rate(self.recipe.optim, self.step / self.total))
        self.loss.zero_()
        self.recorded = self.step

    def _end_of_epoch(self, epoch: int, progress: Progress) -> bool:
        """Evaluate; whether this is the best epoch so far by validation, or by test where nothing is held out."""
        found = {f"{name}_{k}": v for name in self.task.evaluation for k, v in self._evaluate(name).items()}
        judge = "validation_accuracy" if "validation_accuracy" in found else "test_accuracy"
        self.last = {"epoch": epoch + 1, **found}
        better = not self.best or found[judge] > self.best[judge]
        if better:
            self.best = self.last
        self._write(step=self.step, seconds=self.seconds, **self.last)
        shown = "  ".join(f"{k.replace('_', ' ')} {_show(k, v)}" for k, v in found.items())
        progress.say(f"epoch {epoch + 1}/{self.recipe.epochs}  {shown}")
        return better

    def _evaluate(self, name: str) -> dict[str, float]:
        model = self.ema if self.ema is not None else self.accelerator.unwrap_model(self.model)
        # Evaluation has other shapes and modes than training: not worth compiling.
        with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
            loss, right, count = self.task.evaluate(model, name)
        sums = torch.stack([loss.double(), right.double(), torch.tensor(count, dtype=torch.double, device=loss.device)])
        loss, right, count = self.accelerator.reduce(sums, "sum").tolist()
        return {"loss": loss / count, "accuracy": right / count}

    def _capture(self) -> Callable[[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """The update as one CUDA graph where that is safe, else as it is."""
        self.not_captured = reason_against(
            self.task.model,
            device=self.accelerator.device,
            processes=self.accelerator.num_processes,
            fixed_shapes=self.task.loader.drop_last,
            accumulate=self.recipe.optim.accumulate,
            precision=self.recipe.precision,
        )
        if self.not_captured:
            return self._update
        objective = self.task.objective

        def replayed() -> None:
            objective.step += 1

        def generators() -> list[torch.Generator]:
            return [g for g in (objective.generator, self.task.generator) if g is not None]

        return Captured(self._update, key=objective.depends_on, generators=generators, replayed=replayed)

    def _finish(self) -> dict[str, Any]:
        result = {
            "recipe": asdict(self.recipe),
            "seed": self.recipe.seed,
            "last": self.last,
            "best": self.best,
            "steps": self.step,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "processes": self.accelerator.num_processes,
            "environment": environment(),
        }
        if self.accelerator.is_main_process:
            write_json(self.folder / "run.json", result)
        return result

    def close(self) -> None:
        """Let go of the files."""
        if self.metrics is not None:
            self.metrics.file.close()
        self.accelerator.end_training()
        AcceleratorState._reset_state()  # so that another run of this process may choose another precision

    def _write(self, **record: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(**record)
        self.accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])

    def _agree(self, mine: bool) -> bool:
        """Whether any process says so: all must do the same."""
        if self.accelerator.num_processes == 1:
            return mine
        return bool(self.accelerator.reduce(torch.tensor(int(mine), device=self.accelerator.device), "sum"))


def _show(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.4f}"

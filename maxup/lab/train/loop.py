"""Training: one loop for every task, resumable at every step with the same command.

A step is the task's own (`task.step(model, batch) -> Outcome`); the loop adds processes and precision (Accelerate), the
optimizer, the schedule, checkpoints, and what is told to the user.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast, gather_object, set_seed
from torch import Tensor, nn

from maxup.cuda.capture import captured, reason_against
from maxup.cuda.compile import compile_blocks
from maxup.errors import InterruptedRunError, RunError
from maxup.lab.environment import environment
from maxup.lab.models.frozen import frozen_copy
from maxup.lab.output import say
from maxup.lab.progress import Progress, describe
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage.atomic_io import make_folder, read_json, sweep, write_json
from maxup.lab.storage.checkpoint import locked
from maxup.lab.tasks import create_task
from maxup.lab.train.log import Metrics, writing
from maxup.lab.train.optim import average, create_optimizer, learning_rate, set_learning_rate
from maxup.lab.train.resume import load_best, resume, save
from maxup.lab.train.sam import sharp
from maxup.lab.train.signals import asked_to_stop, interruptible, losing_peers
from maxup.lab.train.stages import Stages
from maxup.lab.train.trackers import check_trackers, start_trackers, track

LOG_EVERY = 50


def train(
    recipe: Recipe,
    folder: Path,
    *,
    save_every: float = 60.0,
    save_best: bool = True,
    trackers: list[str] | None = None,
    quiet: bool = False,
    accept_changed_data: bool = False,
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
        accept_changed_data: Resume also where the images are no longer those that the run was begun with.
        model_from: Builds the network instead of the recipe's: (shape, num_classes, **model.args).
        data_from: Returns the data instead of the recipe's: (x, y) or (x, y, x_test, y_test), images as bytes.

    Returns:
        What is also written to run.json: metrics of the last and the best epoch, seed, environment, recipe, seconds in
        all, and seconds of training alone, without evaluation and checkpoints.
    """
    check_trackers(trackers or [])
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        cpu=not torch.cuda.is_available(),
        log_with=trackers or None,
        project_dir=folder,
    )
    try:
        with asked_to_stop() as asked, losing_peers(accelerator.num_processes, folder):
            quiet = quiet or not accelerator.is_main_process
            own = {"model_from": model_from, "data_from": data_from}
            run = _Run(recipe, folder, accelerator, quiet=quiet, **own)  # what it refuses leaves no folder
            run.accept_changed_data = accept_changed_data
            make_folder(folder)
            with locked(folder) if accelerator.is_main_process else nullcontext():
                try:
                    return run.go(asked, save_every, save_best)
                finally:
                    run.close()
    finally:
        AcceleratorState._reset_state()  # so that another run of this process may choose another precision


class _Run:
    """The state of a run, and the loop over it."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool, **own: Any) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        set_seed(recipe.seed)  # the same weights in every process
        rank, world_size = accelerator.process_index, accelerator.num_processes
        self.task = create_task(recipe, accelerator.device, rank=rank, world_size=world_size, **own)
        set_seed(recipe.seed, device_specific=True)  # other dropout masks in every process
        optimizer = create_optimizer(self.task.model, recipe.optim)
        self.model = accelerator.prepare(self.task.model)
        # Around an optimizer Accelerate looks for a package at every step, which a small net feels: only for fp16.
        self.optimizer = optimizer if accelerator.scaler is None else accelerator.prepare(optimizer)
        wanted = recipe.compile and accelerator.device.type == "cuda"
        self.compiled = compile_blocks(self.task.model) if wanted else 0
        self.ema = frozen_copy(self.task.model) if recipe.optim.ema else None
        self.averaged = 0  # weights in the uniform average of "asgd"
        self.stages = Stages(recipe.optim, recipe.epochs, lower_is_better=self.task.lower_is_better)
        self.step, self.recorded, self.trained = 0, 0, False
        self.seconds, self.training_seconds = 0.0, 0.0  # in all, and in steps alone
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.loss = torch.zeros((), device=accelerator.device)  # sum since the last record
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=LOG_EVERY)  # examples and loss of the latest steps
        self.total = self.task.loader.steps(self.stages.longest)
        self.not_captured = reason_against(
            self.task.model,
            device=accelerator.device,
            processes=world_size,
            fixed_shapes=self.task.loader.fixed_shapes,
            accumulate=recipe.optim.accumulate,
            precision=recipe.precision,
        )
        self.update: Callable[[Any], Tensor] = self._update
        if not self.not_captured:
            self.update = captured(
                self._update,
                self.task,
                stage=lambda: self.stages.stage,
                say=lambda line: None if quiet else say(line, flush=True),
            )
        self.whole, self.parts = True, 1  # whether a batch ends an accumulation, and how many batches that has
        self.metrics: Metrics | None = None
        self.accept_changed_data = False

    def go(self, asked: Callable[[], bool], save_every: float, save_best: bool) -> dict[str, Any]:
        """Train to the end, or until asked to stop."""
        if self.not_captured:  # a captured step is one call
            objective = self.task.objective
            objective.forward = interruptible(objective.forward, asked, self.folder)
        going_on = resume(self)
        if self.accelerator.is_main_process:
            for place in (self.folder, self.folder / "checkpoints"):
                sweep(place)  # what a killed process left
            self.metrics = Metrics(self.folder / "metrics.jsonl", going_on)
            self._tell_shortened(self.metrics)
        start_trackers(self.accelerator, self.folder)
        save_best = save_best or self.recipe.optim.restarts > 0
        loader, saved, begun = self.task.loader, time.monotonic(), time.monotonic() - self.seconds
        with Progress(self.total, self.step, quiet=self.quiet) as progress:
            if self.accelerator.device.type == "cuda":
                progress.say(f"step as one CUDA graph: {'no, ' + self.not_captured if self.not_captured else 'yes'}")
            if self.recipe.compile:
                why = "since none repeats" if self.accelerator.device.type == "cuda" else "which is for a GPU"
                progress.say(f"blocks compiled: {self.compiled or f'none, {why}'}")
            while not self.stages.done:
                epoch = loader.epoch
                if self.stages.over:
                    self._next_stage(epoch, progress)
                    continue
                if self.stages.averaging and self.ema is None:
                    self.ema, self.averaged = frozen_copy(self.task.model), 0
                self.model.train()
                tick = time.monotonic()
                for batch in loader:
                    whole = self._step(batch)
                    self.seconds = time.monotonic() - begun
                    if self.step % LOG_EVERY == 0:
                        self._record()
                    self.training_seconds += time.monotonic() - tick
                    if progress.due():
                        text = f"epoch {epoch + 1}/{self.stages.longest}  loss {float(self.recent[-1][1]):.4f}"
                        judged = {k: v for k, v in self.last.items() if k.endswith(self.task.monitor)}
                        text += f"  {describe(judged)}" if judged else ""
                        progress.show(self.step, text, self._size(batch), self.task.unit)
                    if whole and self._agree(asked() or time.monotonic() - saved > save_every):
                        self._check_finite()
                        self._check_weights()
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
                better = self._end_of_epoch(epoch, progress) and save_best
                self.seconds = time.monotonic() - begun
                if better or self.stages.over or self._agree(time.monotonic() - saved > save_every):
                    save(self, best=better)
                    saved = time.monotonic()
        return self._finish(asked, begun)

    def _step(self, batch: tuple[Tensor, Tensor, Tensor]) -> bool:
        """One batch; whether it ended with an update of the weights."""
        optim, loader = self.recipe.optim, self.task.loader
        set_learning_rate(self.optimizer, self.task.lr_scale(batch) * learning_rate(optim, self.step / self.total))
        first = (loader.position - 1) // optim.accumulate * optim.accumulate  # batch of this accumulation
        self.parts = min(optim.accumulate, len(loader) - first)
        self.whole = loader.position == first + self.parts
        loss = self.update(batch)
        if self.whole and self.ema is not None and optim.name == "asgd":
            self.averaged += 1
            average(self.ema, self.task.model, 1 - 1 / self.averaged)
        self.recent.append((batch[0], loss))
        self.trained = True
        self.loss += loss
        self.step += 1
        return self.whole

    def _update(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """What happens on the device: the loss, its gradient and, at the end of an accumulation, new weights."""
        optim, accelerator = self.recipe.optim, self.accelerator
        with nullcontext() if self.whole else accelerator.no_sync(self.model):
            if optim.sam is None:
                loss = self.task.step(self.model, batch).loss
                accelerator.backward(loss if self.parts == 1 else loss / self.parts)
            else:
                with self.task.repeatable(self.model, batch) as again:
                    loss = sharp(self.model, again, accelerator.backward, rho=optim.sam)
            if accelerator.num_processes == 1 and loss.device.type == "cpu" and not math.isfinite(loss.item()):
                self.step += 1  # the batch is used up, and the weights are as before
                self.recent.append((batch[0], loss.detach()))
                self._check_finite()
        if self.whole:
            if optim.clip is not None:
                accelerator.clip_grad_norm_(self.model.parameters(), optim.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.ema is not None and optim.ema:
                average(self.ema, accelerator.unwrap_model(self.model), optim.ema)
        return loss.detach()

    def _check_finite(self) -> None:
        """Look at the latest losses, which makes a GPU wait; weights that went bad are kept apart from checkpoints."""
        finite = torch.stack([loss for _, loss in self.recent]).isfinite().tolist() if self.recent else []
        if not self._agree(not all(finite)):
            return
        if all(finite):
            self._give_up("the loss of another process is not finite, whose sentence says more")
        examples, loss = self.recent[finite.index(False)]
        self._give_up(
            f"the loss became {float(loss)} at about step {self.step}, in the batch of training examples "
            f"{examples.tolist()}"
        )

    def _check_weights(self) -> None:
        """Before a checkpoint: a gradient can overflow where the loss did not."""
        finite = torch.stack([weight.isfinite().all() for weight in self.task.model.parameters()]).all()
        if self._agree(not finite):
            self._give_up(f"the weights are no longer finite at step {self.step}")

    def _give_up(self, sentence: str) -> NoReturn:
        """For what is not finite: the state is kept apart, so that no good checkpoint goes for it."""
        save(self, name="not-finite")
        raise RunError(
            f"{sentence}; the state is saved in {self.folder / 'not-finite'}, apart from the good checkpoints: lower "
            "optim.lr and choose another folder with --out, or mend the data and the same command goes on"
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
        found = self._measure(self.task.every_epoch)
        monitor = f"{'validation' if 'validation' in self.task.every_epoch else 'test'}_{self.task.monitor}"
        self.last = {"epoch": epoch + 1, **found}
        if skipped := sorted(set().union(*gather_object([self.task.skipped()]))):
            self.last["skipped_images"] = len(skipped)
            progress.say(f"images skipped because they cannot be read: {len(skipped)}, such as {skipped[0]}")
        better = not self.best or (
            found[monitor] < self.best[monitor] if self.task.lower_is_better else found[monitor] > self.best[monitor]
        )
        if better:
            self.best = self.last
        self._write(step=self.step, seconds=self.seconds, **self.last)
        averaged = "" if self.ema is None or self.recipe.optim.ema else "  averaged"
        progress.say(f"epoch {epoch + 1}/{self.stages.longest}  {describe(found)}{averaged}")
        self.stages.check(epoch + 1, found[monitor])
        return better

    def _next_stage(self, epoch: int, progress: Progress) -> None:
        """Where a run restarts, every stage ends by going back to the best epoch, and so does the last."""
        self.stages.next(epoch)
        if self.recipe.optim.restarts:
            load_best(self)
            self.ema, self.averaged = None, 0
            self.optimizer.state.clear()
            self.last = {"epoch": epoch, **self._measure(self.task.every_epoch)}
            progress.say(f"back at epoch {self.best['epoch']}, the best  {describe(self.last)}")
            save(self)

    def _measure(self, splits: Iterable[str]) -> dict[str, float]:
        """What splits measure, by name; a perplexity may be infinite, a loss may not."""
        found = {f"{name}_{k}": v for name in splits for k, v in self._evaluate(name).items()}
        for name, value in found.items():
            if math.isnan(value) or (name.endswith("_loss") and math.isinf(value)):
                self._give_up(f"the {name.replace('_', ' ')} is {value} at step {self.step}")
        return found

    def _size(self, batch: tuple[Tensor, Tensor, Tensor]) -> int:
        """What a batch of all processes counts in the task's unit."""
        return self.recipe.batch_size * (batch[2].shape[1] if self.task.unit == "tokens" else 1)

    def _evaluate(self, name: str) -> dict[str, float]:
        model = self.ema if self.ema is not None else self.accelerator.unwrap_model(self.model)
        if self.accelerator.num_processes > 1:  # BatchNorm's statistics are each process's own; rank 0's are saved
            broadcast(list(model.buffers()))
        # Evaluation has other shapes and modes than training: not worth compiling.
        with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
            found, seen = self.task.evaluate(model, name)
        sums = torch.tensor([*found.values(), seen], dtype=torch.double, device=self.accelerator.device)
        *totals, count = self.accelerator.reduce(sums, "sum").tolist()
        if not count:
            raise RunError(f"none of the {name} images can be read, such as {min(self.task.skipped())}")
        return self.task.measures({metric: total / count for metric, total in zip(found, totals, strict=True)})

    def _finish(self, asked: Callable[[], bool], begun: float) -> dict[str, Any]:
        if (kept := self._kept()) is not None:
            return kept
        rest = [name for name in self.task.evaluation if name not in self.task.every_epoch]
        model = self.ema if self.ema is not None else self.accelerator.unwrap_model(self.model)
        self.last = self.last | self._measure(rest)  # anew: the best may be the same object
        if self.accelerator.is_main_process:
            self.last |= self.task.finish(model, self.folder, asked=asked, quiet=self.quiet)
        self.seconds = time.monotonic() - begun
        result = {
            "recipe": asdict(self.recipe),
            "task": self.task.identity,
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
            with writing(self.folder / "run.json"):
                write_json(self.folder / "run.json", result)
        return result

    def _kept(self) -> dict[str, Any] | None:
        """What an earlier call wrote at the end of this very run: nothing is measured anew."""
        try:
            record = read_json(self.folder / "run.json")
            same = not difference(record["recipe"], self.recipe, ignore=()) and record["steps"] == self.step
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return dict(record) if same and not self.trained else None

    def close(self) -> None:
        """Let go of the files."""
        if self.metrics is not None:
            self.metrics.close()
        self.accelerator.end_training()

    def _tell_shortened(self, metrics: Metrics) -> None:
        first = metrics.last_step + 1
        which = f"of steps {first} to {self.recorded}" if first <= self.recorded else f"up to step {self.recorded}"
        if metrics.shortened and not self.quiet:
            say(f"{metrics.path} was shortened: records {which} are missing, and so is their part of the curve")

    def _write(self, **record: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(**record)
        track(self.accelerator, record)

    def _agree(self, mine: bool) -> bool:
        """Whether any process says so: all must do the same."""
        if self.accelerator.num_processes == 1:
            return mine
        return bool(self.accelerator.reduce(torch.tensor(int(mine), device=self.accelerator.device), "sum"))

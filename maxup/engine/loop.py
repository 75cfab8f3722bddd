"""Training: one loop for every task, resumable at every step with the same command.

A step is the task's own (`task.step(model, batch) -> Outcome`); the loop adds processes and precision (Accelerate), the
optimiser, the schedule, checkpoints, and what is told to the user.
"""

import copy
import json
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object, set_seed
from torch import Tensor, nn

from maxup.engine import checkpoint
from maxup.engine.capture import Captured, reason_against
from maxup.engine.environment import environment
from maxup.engine.log import Metrics, Progress
from maxup.engine.optim import create_optimizer, learning_rate, set_learning_rate
from maxup.engine.streams import random_streams, restore_streams
from maxup.recipes.schema import Recipe
from maxup.tasks.vision import Vision

LOG_EVERY = 50


class RunError(RuntimeError):
    """A run that cannot go on, in one sentence."""


class InterruptedRunError(RunError):
    """Asked to stop; the state is saved."""


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
    alone = checkpoint.locked(folder) if accelerator.is_main_process else nullcontext()
    with alone, _asked_to_stop() as asked:
        quiet = quiet or not accelerator.is_main_process
        own = {"model_from": model_from, "data_from": data_from}
        run = _Run(recipe, folder, accelerator, quiet=quiet, **own)
        try:
            return run.go(asked, save_every, save_best)
        finally:
            run.close()


class _Run:
    """The state of a run, which is what a checkpoint holds, and the loop over it."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool, **own: Any) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        set_seed(recipe.seed)  # the same weights in every process
        rank, world_size = accelerator.process_index, accelerator.num_processes
        self.task = Vision(recipe, accelerator.device, rank=rank, world_size=world_size, **own)
        set_seed(recipe.seed, device_specific=True)  # other dropout masks in every process
        optimizer = create_optimizer(self.task.model, recipe.optim)
        self.model, self.optimizer = accelerator.prepare(self.task.model, optimizer)
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
        self._resume()
        loader, saved, begun = self.task.loader, time.monotonic(), time.monotonic() - self.seconds
        with Progress(self.total, self.step, quiet=self.quiet) as progress:
            if self.accelerator.device.type == "cuda":
                progress.say(f"step as one CUDA graph: {'no, ' + self.not_captured if self.not_captured else 'yes'}")
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
                        self._save()
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
                    self._save(best=better)
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
            if self.ema is not None:
                _average(self.ema, accelerator.unwrap_model(self.model), optim.ema)
        return outcome.loss.detach()

    def _check_finite(self) -> None:
        """Look at the latest losses, which makes a GPU wait."""
        for examples, loss in self.recent:
            if not bool(loss.isfinite()):
                self._not_finite(examples, loss)

    def _not_finite(self, examples: Tensor, loss: Tensor) -> None:
        """Stop, naming the examples."""
        if self.accelerator.num_processes == 1:
            self._save()
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

        return Captured(self._update, key=objective.copies, generators=generators, replayed=replayed)

    # --- saving and going on

    def _save(self, *, best: bool = False) -> None:
        ranks = gather_object([self._rank_state()])
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            state = {
                "recipe": asdict(self.recipe),
                "step": self.step,
                "recorded": self.recorded,
                "seconds": self.seconds,
                "training_seconds": self.training_seconds,
                "best": self.best,
                "last": self.last,
                "metrics_size": self.metrics.flush() if self.metrics else 0,
                "model": self.accelerator.unwrap_model(self.model).state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "ema": None if self.ema is None else self.ema.state_dict(),
                "loader": self.task.loader.state_dict(),
                "ranks": ranks,
            }
            checkpoint.save(self.folder / "checkpoints", self.step, state, best=best)
        self.accelerator.wait_for_everyone()

    def _rank_state(self) -> dict[str, Any]:
        """What is different in every process: the random streams and the running loss."""
        return {
            "objective": self.task.objective.state_dict(),
            "augment": self.task.generator.get_state(),
            "loss": self.loss.cpu(),
            "streams": random_streams(),
        }

    def _resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        saved = self.folder / "checkpoints"
        found = checkpoint.latest(saved, self._warn)
        if found is None and any(saved.glob("step-*")):
            raise RunError(f"none of the checkpoints in {saved} can be read; remove {self.folder} to start afresh")
        state = None if found is None else found[1]
        if state is not None:
            self._load(state)
        if self.accelerator.is_main_process:
            self.metrics = Metrics(self.folder / "metrics.jsonl", 0 if state is None else state["metrics_size"])
        self._start_trackers()

    def _load(self, state: dict[str, Any]) -> None:
        before, now = ({k: v for k, v in r.items() if k != "epochs"} for r in (state["recipe"], asdict(self.recipe)))
        changed = [key for key in now if now[key] != before.get(key)]
        if changed or state["recipe"]["epochs"] != self.recipe.epochs:
            raise RunError(
                f"{self.folder} holds a run of another recipe (different: {', '.join(changed) or 'epochs'}); "
                "choose another folder with --out, or remove it"
            )
        ranks = state["ranks"]
        if len(ranks) != self.accelerator.num_processes:
            raise RunError(
                f"{self.folder} was begun by {len(ranks)} processes and there are {self.accelerator.num_processes}; "
                "use as many"
            )
        mine = ranks[self.accelerator.process_index]
        self.accelerator.unwrap_model(self.model).load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # load_state_dict leaves it on the CPU, where a graph would not see it
                group["lr"] = group["lr"].to(self.accelerator.device)
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.task.loader.load_state_dict(state["loader"])
        self.step, self.recorded = state["step"], state["recorded"]
        self.seconds, self.training_seconds = state["seconds"], state["training_seconds"]
        self.best, self.last = state["best"], state["last"]
        self.loss.copy_(mine["loss"])
        self.task.objective.load_state_dict(mine["objective"])
        self.task.generator.set_state(mine["augment"])
        restore_streams(mine["streams"])

    def _start_trackers(self) -> None:
        """Begin tracking; TensorBoard is written anew from metrics.jsonl, so that no step appears twice."""
        if not self.accelerator.log_with:
            return
        if self.accelerator.is_main_process:
            shutil.rmtree(self.folder / "maxup", ignore_errors=True)
        self.accelerator.init_trackers("maxup")
        if self.accelerator.is_main_process:
            for line in (self.folder / "metrics.jsonl").read_text().splitlines():
                record = json.loads(line)
                self.accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])

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

    def _warn(self, sentence: str) -> None:
        if not self.quiet:
            print(sentence, flush=True)

    def _agree(self, mine: bool) -> bool:
        """Whether any process says so: all must do the same."""
        if self.accelerator.num_processes == 1:
            return mine
        return bool(self.accelerator.reduce(torch.tensor(int(mine), device=self.accelerator.device), "sum"))


def write_json(path: Path, document: Any) -> None:
    """Write a small JSON file so that it is there whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)


@torch.no_grad()
def _average(ema: nn.Module, model: nn.Module, decay: float | None) -> None:
    """Move the average towards the weights; buffers are the model's own."""
    for kept, new in zip(ema.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - (decay or 0.0))
    for old, buffer in zip(ema.buffers(), model.buffers(), strict=True):
        old.copy_(buffer)


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and a polite kill into a question that can be asked between steps; a second Ctrl-C insists."""
    requests: list[int] = []

    def note(number: int, frame: Any) -> None:
        requests.append(number)
        if len(requests) > 1:
            raise KeyboardInterrupt

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.4f}"

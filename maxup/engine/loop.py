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
from accelerate.utils import gather_object, set_seed
from torch import Tensor, nn

from maxup.engine import checkpoint
from maxup.engine.environment import environment
from maxup.engine.log import Metrics, Progress
from maxup.engine.optim import create_optimizer, learning_rate, set_learning_rate
from maxup.recipes.schema import Recipe
from maxup.tasks.vision import Vision


LOG_EVERY = 50


class RunError(RuntimeError):
    """A run that cannot go on, in one sentence."""


class Interrupted(RunError):
    """Asked to stop; the state is saved."""


def train(
    recipe: Recipe,
    folder: Path,
    *,
    save_every: float = 60.0,
    save_epochs: bool = True,
    trackers: list[str] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a recipe in a folder, going on where an earlier call stopped.

    Args:
        recipe: What to train.
        folder: The run's own folder; the same folder and recipe go on where they stopped.
        save_every: Seconds between checkpoints within an epoch; every epoch ends with one.
        save_epochs: Off, epochs end without one (and the best is not kept) unless `save_every` says so; the last does.
        trackers: Accelerate's trackers, such as ["tensorboard"].
        quiet: Show no progress.

    Returns:
        What is also written to run.json: the metrics of the last and the best epoch, seed, environment, recipe, seconds
        in all, and seconds of training alone, without evaluation and checkpoints.
    """
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=recipe.optim.accumulate,
        log_with=trackers or None,
        project_dir=folder,
    )
    folder.mkdir(parents=True, exist_ok=True)
    alone = checkpoint.locked(folder) if accelerator.is_main_process else nullcontext()
    with alone, _asked_to_stop() as asked:
        run = _Run(recipe, folder, accelerator, quiet=quiet or not accelerator.is_main_process)
        try:
            return run.go(asked, save_every, save_epochs)
        finally:
            run.close()


class _Run:
    """The state of a run, which is what a checkpoint holds, and the loop over it."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
        set_seed(recipe.seed)  # the same weights in every process
        self.task = Vision(recipe, accelerator.device, **ranks)
        set_seed(recipe.seed, device_specific=True)  # other dropout masks in every process
        optimizer = create_optimizer(self.task.model, recipe.optim)
        self.model, self.optimizer = accelerator.prepare(self.task.model, optimizer)
        self.ema = copy.deepcopy(self.task.model).requires_grad_(False) if recipe.optim.ema else None
        self.step, self.seconds, self.best, self.last = 0, 0.0, {}, {}
        self.training_seconds = 0.0  # in steps alone
        self.loss = torch.zeros((), device=accelerator.device)  # sum since the last record
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=LOG_EVERY)  # examples and loss of the latest steps
        self.total = recipe.epochs * len(self.task.loader)

    def close(self) -> None:
        """Let go of what is open."""
        if hasattr(self, "metrics"):
            self.metrics.file.close()

    def go(self, asked: Callable[[], bool], save_every: float, save_epochs: bool) -> dict[str, Any]:
        """Train to the end, or until asked to stop."""
        self._resume()
        loader, saved, begun = self.task.loader, time.monotonic(), time.monotonic() - self.seconds
        with Progress(self.total, self.step, quiet=self.quiet) as progress:
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
                            raise Interrupted(
                                f"stopped at step {self.step} of {self.total}; saved in {self.folder}: "
                                "the same command goes on from there"
                            )
                    tick = time.monotonic()
                self._record()
                self.training_seconds += time.monotonic() - tick
                better = self._end_of_epoch(epoch, progress)
                done = loader.epoch == self.recipe.epochs
                if save_epochs or done or self._agree(time.monotonic() - saved > save_every):
                    self._save(best=better and save_epochs)
                    saved = time.monotonic()
        return self._finish()

    def _step(self, batch: tuple[Tensor, Tensor, Tensor]) -> bool:
        """One batch; whether it ended with an update of the weights."""
        optim, accelerator = self.recipe.optim, self.accelerator
        set_learning_rate(self.optimizer, learning_rate(optim, self.step / self.total))
        whole = (self.step + 1) % optim.accumulate == 0 or (self.step + 1) % len(self.task.loader) == 0
        with nullcontext() if whole else accelerator.no_sync(self.model):
            outcome = self.task.step(self.model, batch)
            loss = outcome.loss.detach()
            self.recent.append((batch[0], loss))
            if loss.device.type == "cpu":
                self._check_finite()
            accelerator.backward(outcome.loss / optim.accumulate)
        self.loss += loss
        self.step += 1
        if whole:
            if optim.clip is not None:
                accelerator.clip_grad_norm_(self.model.parameters(), optim.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.ema is not None:
                _average(self.ema, accelerator.unwrap_model(self.model), optim.ema)
        return whole

    def _check_finite(self) -> None:
        """Stop where a loss is not a number, naming the examples; reading losses makes a GPU wait."""
        for examples, loss in self.recent:
            if not bool(loss.isfinite()):
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
                "metrics_size": self.metrics.flush(),
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
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        return {
            "objective": self.task.objective.state_dict(),
            "augment": self.task.generator.get_state(),
            "loss": self.loss.cpu(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
            "python": random.getstate(),
            "numpy": [kind, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss],
        }

    def _resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        found = checkpoint.latest(self.folder / "checkpoints", self._warn)
        state = None if found is None else found[1]
        if state is not None:
            self._load(state)
        self.recorded = 0 if state is None else state["recorded"]
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
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.task.loader.load_state_dict(state["loader"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.training_seconds = state["training_seconds"]
        self.best, self.last = state["best"], state["last"]
        self.loss.copy_(mine["loss"])
        self.task.objective.load_state_dict(mine["objective"])
        self.task.generator.set_state(mine["augment"])
        torch.set_rng_state(mine["torch"])
        if mine["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(mine["cuda"])
        random.setstate(mine["python"])
        kind, keys, *rest = mine["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))

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
        self.accelerator.end_training()
        return result

    def _write(self, **record: Any) -> None:
        if self.accelerator.is_main_process:
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
    for kept, new in zip(ema.buffers(), model.buffers(), strict=True):
        kept.copy_(new)


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

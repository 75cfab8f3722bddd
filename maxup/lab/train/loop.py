"""Training: one loop for every task. The same command resumes at the step where it stopped.

The task computes the loss of a batch (`task.step(model, batch) -> Outcome`), `step.py` updates the weights, and
`checkpointing.py` saves and resumes. The loop adds epochs, evaluation and records.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object, set_seed
from torch import nn

from maxup.cuda.compile import compile_blocks
from maxup.errors import InterruptedRunError, NonFiniteError, RunError, format_error
from maxup.lab.data.find import check_root
from maxup.lab.environment import environment
from maxup.lab.output import say
from maxup.lab.progress import Progress, format_metrics
from maxup.lab.recipes.objectives import warmup_note
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage.atomic_io import make_folder, remove_leftovers
from maxup.lab.storage.locks import locked
from maxup.lab.storage.signature import code_names, sign
from maxup.lab.tasks import create_task
from maxup.lab.train.checkpointing import load_best, resume, save
from maxup.lab.train.evaluate import evaluate_splits
from maxup.lab.train.extend import set_aside
from maxup.lab.train.header import describe
from maxup.lab.train.log import Metrics, read_record, write_record
from maxup.lab.train.optim import create_optimizer, learning_rate
from maxup.lab.train.processes import start_accelerator
from maxup.lab.train.signals import interruptible, report_lost_peers, stop_on_signal
from maxup.lab.train.state import RunState
from maxup.lab.train.step import LOG_EVERY, Batch, TrainingStep
from maxup.lab.train.trackers import check_trackers, start_trackers, track


def train(
    recipe: Recipe,
    folder: Path,
    *,
    save_every: float = 60.0,
    save_best: bool = True,
    trackers: Sequence[str] = (),
    quiet: bool = False,
    accept_changed_data: bool = False,
    name: str = "",
    extend: bool = False,
    restart: bool = False,
    model_from: Callable[..., nn.Module] | None = None,
    data_from: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Train a recipe, or resume it.

    Args:
        recipe: What to train.
        folder: The folder of the run. The same folder and recipe resume the run.
        save_every: Seconds between checkpoints. The best and the last epoch are always saved.
        save_best: Whether to save an epoch because it is the best so far.
        trackers: Accelerate's trackers, such as ["tensorboard"].
        quiet: Whether to hide the progress.
        accept_changed_data: Whether to resume even if the images have changed since the run started.
        name: The name of the recipe, to print and record it.
        extend: Whether to continue a run with fewer epochs, if its schedule allows it.
        restart: Whether to rename the folder of an earlier run and start over.
        model_from: Builds the model instead of the recipe's: (shape, num_classes, **model.args).
        data_from: Returns the data instead of the recipe's, such as (x, y, x_test, y_test), a Dataset, or a pair
            (train, test) of them.

    Returns:
        The contents of run.json: metrics of the last and the best epoch, seed, environment, recipe, seconds of the
        run, seconds of the training steps alone, and the part of these in which steps were compiled and captured.
    """
    check_trackers(trackers)
    if data_from is None:
        check_root(recipe.data.name, recipe.data.root)
    accelerator = start_accelerator(recipe.precision, list(trackers), folder)
    try:
        with report_lost_peers(accelerator.num_processes, folder):
            sources = {"model_from": model_from, "data_from": data_from}
            quiet = quiet or not accelerator.is_main_process
            # Before the folder is created, and before signals wait for the end of a step: loading data may take long.
            trainer = Trainer(recipe, folder, accelerator, quiet=quiet, **sources)
            trainer.name = name
            restart = restart and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # otherwise resume
            if restart:
                if accelerator.is_main_process:
                    set_aside(folder, trainer.say)
                accelerator.wait_for_everyone()
            try:
                make_folder(folder)
            except OSError as error:
                why = error.strerror or format_error(error)
                raise RunError(f"cannot create {folder}: {why}; choose another folder with --out") from error
            with stop_on_signal() as should_stop, locked(folder) if accelerator.is_main_process else nullcontext():
                try:
                    trainer.say(f"{name or 'a recipe'}, in {folder}")
                    trainer.say(describe(recipe, trainer.task, accelerator))
                    trainer.resume(accept_changed_data, extend=extend)
                    return trainer.run(should_stop, save_every, save_best)
                except NonFiniteError as error:
                    trainer.save(name="not-finite")  # a separate folder, to keep the good checkpoints
                    raise RunError(
                        f"{error}; the state is saved in {folder / 'not-finite'}, apart from the good checkpoints: "
                        "lower optim.lr and choose another folder with --out, or fix the data and resume with the "
                        "same command"
                    ) from error
                finally:
                    trainer.close()
    finally:
        AcceleratorState._reset_state()  # another run in this process may use another precision


class Trainer:
    """Train one recipe in one folder. `sources` are `model_from` and `data_from`, see `train`."""

    name = ""  # of the recipe, if known

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator, *, quiet: bool, **sources: Any) -> None:
        self.recipe, self.folder, self.accelerator, self.quiet = recipe, folder, accelerator, quiet
        set_seed(recipe.seed)  # the same weights in every process
        rank, world_size = accelerator.process_index, accelerator.num_processes
        self.task = create_task(recipe, accelerator.device, rank=rank, world_size=world_size, **sources)
        set_seed(recipe.seed, device_specific=True)  # different dropout masks in every process
        optimizer = create_optimizer(self.task.model, recipe.optim)
        model = accelerator.prepare(self.task.model)
        if accelerator.scaler is not None:  # only fp16 needs Accelerate's optimizer, which slows small models down
            optimizer = accelerator.prepare(optimizer)
        self.on_gpu = accelerator.device.type == "cuda"
        self.compiled = compile_blocks(self.task.model) if recipe.compile and self.on_gpu else 0
        self.state = RunState(recipe, self.task, accelerator, model, optimizer)
        self.step = TrainingStep(self.state, quiet=quiet)
        self.metrics: Metrics | None = None  # in the main process
        self.resumed_at = 0

    def say(self, message: str) -> None:
        """Print a message, unless the run is quiet."""
        if not self.quiet:
            say(message, flush=True)

    def resume(self, accept_changed_data: bool = False, *, extend: bool = False) -> None:
        """Load the newest checkpoint, if there is one, and open metrics.jsonl."""
        options = {"accept_changed_data": accept_changed_data, "extend": extend}
        size = resume(self.state, self.folder, self.say, **options)
        self.resumed_at = self.state.step
        if self.accelerator.is_main_process:
            for folder in (self.folder, self.folder / "checkpoints"):
                remove_leftovers(folder)  # the files of a killed process
            if (names := code_names(self.task.identity)) and (why := sign(self.folder, names)):
                self.say(f"the run is not signed ({why}), so other commands need --trust to open it")
            self.metrics = Metrics(self.folder / "metrics.jsonl", size)
            if missing := self.metrics.missing(self.state.recorded):
                self.say(missing)

    def save(self, *, best: bool = False, name: str = "checkpoints") -> None:
        save(self.state, self.folder / name, self.metrics, best=best)

    def close(self) -> None:
        """Close the files and the trackers."""
        if self.metrics is not None:
            self.metrics.close()
        self.accelerator.end_training()

    def run(self, should_stop: Callable[[], bool], save_every: float, save_best: bool) -> dict[str, Any]:
        """Train to the end, or until `should_stop()` returns True."""
        state, stages, loader = self.state, self.state.stages, self.task.loader
        if self.step.not_captured:  # a captured step is one call
            objective = self.task.objective
            objective.forward = interruptible(objective.forward, should_stop, self.folder)
        start_trackers(self.accelerator, self.folder)
        save_best = save_best or self.recipe.optim.restarts > 0
        saved, start = time.monotonic(), time.monotonic() - state.seconds
        with Progress(state.total, state.step, quiet=self.quiet) as progress:
            self._describe_step(progress)
            finished = stages.done or (stages.over and stages.stage == self.recipe.optim.restarts)
            if self.resumed_at and finished:
                progress.say(f"already finished, at step {state.step}; --restart or restart=True trains it again")
            elif self.resumed_at:
                progress.say(f"resuming at step {state.step} of {state.total}")
            while not stages.done:
                epoch = loader.epoch
                if stages.over:
                    self._next_stage(epoch, progress)
                    continue
                if stages.averaging and state.ema is None:
                    state.start_average()
                state.model.train()
                tick = time.monotonic()
                for batch in loader:
                    updated = self.step(batch)
                    state.seconds = time.monotonic() - start
                    if state.step % LOG_EVERY == 0:
                        self._record_loss()
                    state.training_seconds += time.monotonic() - tick
                    if progress.due():
                        self._show(epoch, batch, progress)
                    if updated and state.any_rank(should_stop() or time.monotonic() - saved > save_every):
                        self.step.check_losses()
                        self.step.check_weights()
                        self.save()
                        saved = time.monotonic()
                        if state.any_rank(should_stop()):
                            raise InterruptedRunError(
                                f"stopped at step {state.step} of {state.total} and saved in {self.folder}; "
                                "the same command resumes"
                            )
                    tick = time.monotonic()
                self._record_loss()
                state.training_seconds += time.monotonic() - tick
                better = self._end_epoch(epoch, progress) and save_best
                state.seconds = time.monotonic() - start
                if better or stages.over or state.any_rank(time.monotonic() - saved > save_every):
                    self.save(best=better)
                    saved = time.monotonic()
        return self._finish(should_stop, start)

    def _record_loss(self) -> None:
        state = self.state
        if steps := state.step - state.recorded:
            self.step.check_losses()
            loss = float(self.accelerator.reduce(state.loss, "mean")) / steps
            lr = learning_rate(self.recipe.optim, state.step / state.total)
            self._write(step=state.step, train_loss=loss, lr=lr)
            state.loss.zero_()
            state.recorded = state.step

    def _end_epoch(self, epoch: int, progress: Progress) -> bool:
        """Evaluate, unless `eval_every` skips this epoch.

        Returns whether it is the best epoch by validation, or by test if nothing is held out.
        """
        state, task = self.state, self.task
        if not state.stages.should_evaluate(epoch + 1):
            state.stages.check(epoch + 1, None)
            return False
        measured = self._measure(task.every_epoch)
        monitor = f"{'validation' if 'validation' in task.every_epoch else 'test'}_{task.monitor}"
        state.last = {"epoch": epoch + 1, **measured}
        if skipped := sorted(set().union(*gather_object([task.skipped()]))):
            state.last["skipped_images"] = len(skipped)
            from maxup.lab.data.decode import why_unreadable  # imports PIL

            count = f"{len(skipped)} image{'s' if len(skipped) > 1 else ''}"
            progress.say(f"skipped {count} that cannot be read, such as {why_unreadable(skipped[0])}")
        kept = getattr(task.objective, "gap_kept", None)  # of fast or shortlist
        checked = {"gap_kept": kept} if kept is not None and math.isfinite(kept) else {}
        state.last |= checked
        sign = -1 if task.lower_is_better else 1
        better = not state.best or sign * measured[monitor] > sign * state.best[monitor]
        if better:
            state.best = state.last
        self._write(step=state.step, seconds=state.seconds, **state.last)
        averaged = "  averaged" if state.ema is not None and self.recipe.optim.name == "asgd" else ""
        progress.say(f"epoch {epoch + 1}/{state.stages.longest}  {format_metrics(measured | checked)}{averaged}")
        state.stages.check(epoch + 1, measured[monitor])
        return better

    def _next_stage(self, epoch: int, progress: Progress) -> None:
        """Start the next stage. If the recipe restarts, restore the best epoch, also after the last stage."""
        state = self.state
        state.stages.next(epoch)
        if self.recipe.optim.restarts:
            load_best(state, self.folder / "checkpoints")
            state.ema, state.averaged = None, 0
            state.optimizer.state.clear()
            state.last = {"epoch": epoch, **self._measure(self.task.every_epoch)}
            progress.say(f"restored the best epoch, {state.best['epoch']}  {format_metrics(state.last)}")
            self.save()

    def _measure(self, splits: Iterable[str]) -> dict[str, float]:
        """Evaluate splits. A perplexity may be infinite, a loss may not."""
        # Evaluation has other shapes and modes than training: not worth compiling.
        with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
            measured = evaluate_splits(self.task, self.state.evaluated, splits, self.accelerator)
        for name, value in measured.items():
            if math.isnan(value) or (name.endswith("_loss") and math.isinf(value)):
                raise NonFiniteError(f"the {name.replace('_', ' ')} is {value} at step {self.state.step}")
        return measured

    def _finish(self, should_stop: Callable[[], bool], start: float) -> dict[str, Any]:
        """Compute the final metrics and write run.json. A run that was already finished keeps its run.json."""
        state = self.state
        if state.step == self.resumed_at and (record := read_record(self.folder, self.recipe, state.step)):
            return record
        rest = [split for split in self.task.evaluation if split not in self.task.every_epoch]
        state.last = state.last | self._measure(rest)  # a new dict: `best` may be the same object
        if self.accelerator.is_main_process:
            state.last |= self.task.finish(state.evaluated, self.folder, should_stop=should_stop, quiet=self.quiet)
        state.seconds = time.monotonic() - start
        result = {
            "recipe_name": self.name,
            "recipe": asdict(self.recipe),
            "task": self.task.identity,
            "seed": self.recipe.seed,
            "last": state.last,
            "best": state.best,
            "steps": state.step,
            "seconds": state.seconds,
            "training_seconds": state.training_seconds,
            "compile_seconds": state.compile_seconds,
            "processes": self.accelerator.num_processes,
            "environment": environment(),
        }
        if self.accelerator.is_main_process:
            write_record(self.folder, result)
        return result

    def _write(self, **record: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(**record)
        track(self.accelerator, record)

    def _show(self, epoch: int, batch: Batch, progress: Progress) -> None:
        monitored = {k: v for k, v in self.state.last.items() if k.endswith(self.task.monitor)}
        text = f"epoch {epoch + 1}/{self.state.stages.longest}  loss {float(self.step.recent[-1][1]):.4f}"
        text += f"  {format_metrics(monitored)}" if monitored else ""
        units = self.recipe.batch_size * (batch[2].shape[1] if self.task.unit == "tokens" else 1)
        progress.show(self.state.step, text, units, self.task.unit)

    def _describe_step(self, progress: Progress) -> None:
        """Print how steps run: as a CUDA graph or not, with compiled blocks or not, and if the warmup is shortened."""
        reason = self.step.not_captured
        if self.on_gpu:
            progress.say(f"step as one CUDA graph: {'no, ' + reason if reason else 'yes'}")
        if self.recipe.compile:
            why = "because no block repeats" if self.on_gpu else "which needs a GPU"
            progress.say(f"compiled blocks: {self.compiled or f'none, {why}'}")
        if note := warmup_note(self.recipe):
            progress.say(note)

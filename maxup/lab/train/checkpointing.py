"""Write the checkpoints of a run, and resume from them.

`RunState.state_dict` returns what a checkpoint contains; `maxup.lab.storage.checkpoint` writes the files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from maxup.errors import RunError, error_message
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.train.extend import SCHEDULE, check_extension, is_extensible
from maxup.lab.train.log import Metrics
from maxup.lab.train.state import RunState

START_OVER = "start over with maxup train --restart"


def save(state: RunState, folder: Path, metrics: Metrics | None, *, best: bool = False) -> None:
    """Write a checkpoint. Every process must call this; the main process writes, and only it has `metrics`."""
    contents = state.state_dict()
    if state.accelerator.is_main_process:
        contents["metrics_size"] = metrics.flush() if metrics else 0
        checkpoint.save(folder, state.step, contents, best=best)
    state.accelerator.wait_for_everyone()


def resume(
    state: RunState,
    run_folder: Path,
    warn: Callable[[str], None],
    *,
    accept_changed_data: bool = False,
    extend: bool = False,
) -> int:
    """Load the newest valid checkpoint of this run, if there is one.

    Damaged checkpoints are skipped with a warning. So are checkpoints of another run if an older one is of this run. A
    checkpoint of this run with another number of epochs is never skipped.

    Args:
        state: The state of the run.
        run_folder: The folder of the run.
        warn: Called with a message for every checkpoint that is skipped.
        accept_changed_data: Whether the images may differ from those at the start of the run.
        extend: Whether the run may have had fewer epochs.

    Returns:
        The length of metrics.jsonl at the checkpoint, or 0 for a new run.

    Raises:
        RunError: No checkpoint can be used, or the folder belongs to another run.
    """
    folder, size = run_folder / "checkpoints", None
    other_runs: dict[int, RunError] = {}
    for step, saved in checkpoint.each(folder, warn):
        changed: list[str] = []
        try:
            changed = _changed_settings(state, saved)
            _reject_other_run(state, saved, run_folder, changed, accept_changed_data, extend)
            state.load_state_dict(saved)
            if changed:
                state.stages.extend(state.task.loader.epoch)
            size = int(saved["metrics_size"])
        except RunError as error:
            if changed and (extend or set(changed) <= set(SCHEDULE)):  # this run, longer or shorter: lose no steps
                raise
            other_runs[step] = error
        except Exception as error:  # load_state_dict of models, optimizers and generators raise many types
            why = f"{error} is missing" if isinstance(error, KeyError) else error_message(error)
            warn(f"{folder / f'step-{step:06d}'} cannot be loaded into this run: {why}")
        else:
            for other, refusal in other_runs.items():
                warn(f"{folder / f'step-{other:06d}'} is skipped, and step {step} is used: {refusal}")
            break
    if size is None and other_runs:
        raise next(iter(other_runs.values()))
    if size is None and any(folder.glob("step-*")):
        raise RunError(f"none of the checkpoints in {folder} can be used; remove {run_folder} to start over")
    steps = gather_object([state.step])
    if len(set(steps)) > 1:
        raise RunError(
            f"ranks see different checkpoints in {folder} (steps {steps}); use a folder that all machines share"
        )
    return size or 0


def load_best(state: RunState, folder: Path) -> None:
    """Load the weights that were evaluated in the best epoch into the model."""
    warnings: list[str] = []
    found = checkpoint.best(folder, warnings.append)
    if found is None:
        raise RunError(f"{folder} has no best checkpoint to restart from{': ' + warnings[0] if warnings else ''}")
    _, saved = found
    state.network.load_state_dict(saved["model"] if saved["ema"] is None else saved["ema"])


def _changed_settings(state: RunState, saved: dict[str, Any]) -> list[str]:
    """Return the settings of the recipe that differ between a checkpoint and this run."""
    ignore = ["data.workers", "eval_every"]  # have no effect on the weights
    if state.recipe.task == "language" or saved["task"].get("data"):
        ignore.append("data.root")  # the task compares the content of the text or the images
    return difference(saved["recipe"], state.recipe, ignore=ignore)


def _reject_other_run(
    state: RunState,
    saved: dict[str, Any],
    folder: Path,
    changed: list[str],
    accept_changed_data: bool,
    extend: bool,
) -> None:
    """Raise a RunError if a checkpoint is of another recipe, other data, or another number of processes.

    Settings may have changed only in an extended run.
    """
    if changed and extend:
        options: dict[str, Any] = {"done": int(saved["step"]), "steps": state.task.loader.steps, "folder": folder}
        check_extension(recipe_from(saved["recipe"]), state.recipe, changed, **options)
    elif changed:
        longer = changed == ["epochs"] and state.recipe.epochs > saved["recipe"]["epochs"]
        advice = "continue it with --extend, " if longer and is_extensible(state.recipe) else ""
        raise RunError(
            f"{folder} contains a run of another recipe (different: {', '.join(changed)}); "
            f"{advice}choose another folder with --out, or {START_OVER}"
        )
    identity = {key: value for key, value in saved["task"].items() if key != "data" or not accept_changed_data}
    state.task.check_identity(identity, folder)
    processes, now = len(saved["ranks"]), state.accelerator.num_processes
    if processes != now:
        raise RunError(
            f"{folder} was started with {processes} processes, but now has {now}; run it with {processes} processes"
        )

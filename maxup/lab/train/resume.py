"""What a checkpoint of a run holds, and how a run goes on from it as if it had never stopped."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from maxup.errors import RunError, error_message
from maxup.lab.models.frozen import frozen_copy
from maxup.lab.output import say
from maxup.lab.recipes.difference import difference
from maxup.lab.storage import checkpoint
from maxup.lab.train import validate_state
from maxup.rng import load_rng_state_dict, rng_state_dict

if TYPE_CHECKING:
    from maxup.lab.train.loop import _Run


def save(run: "_Run", *, best: bool = False, name: str = "checkpoints") -> None:
    """Write a checkpoint; every process of a run must call this, and one writes.

    Args:
        run: Whose state.
        best: Whether this is the best so far.
        name: The folder in the run's own.
    """
    ranks = gather_object([_rank_state(run)])
    if run.accelerator.is_main_process:
        scaler = run.accelerator.scaler
        state = {
            "recipe": asdict(run.recipe),
            "step": run.step,
            "recorded": run.recorded,
            "seconds": run.seconds,
            "training_seconds": run.training_seconds,
            "best": run.best,
            "last": run.last,
            "metrics_size": run.metrics.flush() if run.metrics else 0,
            "model": run.accelerator.unwrap_model(run.model).state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "ema": None if run.ema is None else run.ema.state_dict(),
            "averaged": run.averaged,
            "stages": run.stages.state_dict(),
            "task": run.task.identity,
            "loader": run.task.loader.state_dict(),
            "ranks": ranks,
        }
        checkpoint.save(run.folder / name, run.step, state, best=best)
    run.accelerator.wait_for_everyone()


def resume(run: "_Run") -> int:
    """Go on from the newest checkpoint that is whole and fits, if there is one; those that do not are named.

    So is one of another run, where an older one is of this; where all that are whole are of another, nothing is done.

    Returns:
        The length of metrics.jsonl then; 0 for a run that begins.
    """
    saved, size = run.folder / "checkpoints", None
    foreign: dict[int, RunError] = {}

    def warn(sentence: str) -> None:
        if not run.quiet:
            say(sentence, flush=True)

    for step, state in checkpoint.each(saved, warn):
        try:
            _refuse_another(run, state)
            validate_state.check(run, step, state)
            _load(run, state)
        except RunError as error:
            foreign[step] = error
        except Exception as error:  # of whatever type: the checkpoint may be hostile, with a manifest to match
            why = f"it has no {error}" if isinstance(error, KeyError) else error_message(error)
            warn(f"{saved / f'step-{step:06d}'} does not fit this run: {why}")
        else:
            size = int(state["metrics_size"])
            for other, refusal in foreign.items():
                warn(f"{saved / f'step-{other:06d}'} is skipped for step {step}, which is of this run: {refusal}")
            break
    if size is None and foreign:
        raise next(iter(foreign.values()))
    if size is None and any(saved.glob("step-*")):
        raise RunError(f"none of the checkpoints in {saved} can be used; remove {run.folder} to start afresh")
    steps = gather_object([run.step])
    if len(set(steps)) > 1:
        raise RunError(f"the processes found different checkpoints in {saved}, of steps {steps}; let all see the same")
    return size or 0


def load_best(run: "_Run") -> None:
    """Put the weights that were evaluated in the best epoch into the model, as its best checkpoint holds them."""
    said: list[str] = []
    found = checkpoint.best(run.folder / "checkpoints", said.append)
    if found is None:
        raise RunError(f"{run.folder} has no best checkpoint to go back to{': ' + said[0] if said else ''}")
    _, state = found
    weights = state["ema"] if state["ema"] is not None else state["model"]
    run.accelerator.unwrap_model(run.model).load_state_dict(weights)


def _rank_state(run: "_Run") -> dict[str, Any]:
    """What is different in every process: the random streams and the running loss."""
    return {
        "objective": run.task.objective.state_dict(),
        "task": run.task.state_dict(),
        "augment": run.task.generator.get_state(),
        "loss": run.loss.cpu(),
        "streams": rng_state_dict(),
    }


def _load(run: "_Run", state: dict[str, Any]) -> None:
    mine = state["ranks"][run.accelerator.process_index]
    run.accelerator.unwrap_model(run.model).load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    for group in run.optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # load_state_dict leaves it on the CPU, where a graph would not see it
            group["lr"] = group["lr"].to(run.accelerator.device)
    for parameter, kept in run.optimizer.state.items():  # fused updates want the parameter's own memory format
        for key, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    if state["scaler"] is not None and run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(state["scaler"])
    run.ema, run.averaged = None, state["averaged"]
    if state["ema"] is not None:
        run.ema = frozen_copy(run.task.model)
        run.ema.load_state_dict(state["ema"])
    run.stages.load_state_dict(state["stages"])
    run.task.loader.load_state_dict(state["loader"])
    run.step, run.recorded = state["step"], state["recorded"]
    run.seconds, run.training_seconds = state["seconds"], state["training_seconds"]
    run.best, run.last = state["best"], state["last"]
    run.loss.copy_(mine["loss"])
    run.task.objective.load_state_dict(mine["objective"])
    run.task.load_state_dict(mine["task"])
    run.task.generator.set_state(mine["augment"])
    load_rng_state_dict(mine["streams"])


def _refuse_another(run: "_Run", state: dict[str, Any]) -> None:
    """A RunError where the checkpoint is of another recipe, or of another number of processes."""
    ignore = ["data.workers"]  # which change nothing
    if run.recipe.task == "language":
        ignore.append("data.root")  # a text is known by its tokens
    if changed := difference(state["recipe"], run.recipe, ignore=ignore):
        raise RunError(
            f"{run.folder} holds a run of another recipe (different: {', '.join(changed)}); "
            "choose another folder with --out, or remove it"
        )
    theirs = {key: value for key, value in state["task"].items() if key != "data" or not run.accept_changed_data}
    run.task.refuse_another(theirs, run.folder)
    ranks, processes = state["ranks"], run.accelerator.num_processes
    if len(ranks) != processes:
        raise RunError(f"{run.folder} was begun by {len(ranks)} processes and there are {processes}; use as many")

"""A finished or interrupted run, opened again from its folder: the recipe, the task it describes, the trained model."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import RunError, error_message
from maxup.lab.output import say
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage import checkpoint
from maxup.lab.tasks import create_task


@dataclass
class Run:
    """A run's checkpoint in memory."""

    recipe: Recipe
    task: Any
    """Its data and objective."""
    model: nn.Module
    """What was evaluated in training, the average of the weights where there is one; in evaluation mode."""
    step: int
    recorded: dict[str, Any]
    """What training measured at the end of the epoch: {} where the checkpoint lies within the first one."""


def open_run(
    folder: Path,
    which: str = "last",
    *,
    task: str | None = None,
    root: str | None = None,
    accept_changed_data: bool = False,
    **own: Callable[..., Any] | None,
) -> Run:
    """Build what a run's recipe says and load the weights of its "best" or "last" checkpoint.

    A task named is the only one that will do; `root` is where the data are now, if not where the recipe says. `own` are
    `model_from` and `data_from` of a run trained with them. A damaged checkpoint is named on stderr and skipped. Images
    other than those of the training are refused, unless `accept_changed_data`.
    Nothing in the folder can run code. A RunError, or the CheckpointError or RecipeError behind it, says what is wrong.
    """
    state, step = _state(folder, which)
    recipe = recipe_from(state["recipe"])
    recipe.data.root = root or recipe.data.root
    if task not in (None, recipe.task):
        kinds = {"vision": "images", "language": "text"}
        raise RunError(f"{folder} is a run on {kinds[recipe.task]}, and this is for runs on {kinds[str(task)]}")
    before = {key: value for key, value in state["task"].items() if key != "data" or not accept_changed_data}
    for option in ("model_from", "data_from"):
        if before.get(option) and own.get(option) is None:
            raise RunError(f"{folder} was trained with --{option} {before[option]}; give the same option here")
    bare = replace(
        recipe.model, pretrained=False, weights=None, new_head=False
    )  # what training began with is not needed again
    weights = state["ema"] if state["ema"] is not None else state["model"]

    def check(task: Any, network: nn.Module) -> None:
        task.refuse_another(before, folder)
        _check_shapes(folder, weights, network)

    plain = replace(recipe, model=bare, precision="no")  # nor is the precision of its steps
    built = build_task(plain, check_network=check, **own)
    built.refuse_another(before, folder)
    try:
        built.model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise RunError(f"{folder} holds weights that do not fit its recipe: {error_message(error)}") from error
    found = state["best" if which == "best" else "last"]
    return Run(recipe, built, built.model.eval(), step, found)


def evaluate(run: Run) -> dict[str, dict[str, float]]:
    """What training measures of every split, such as loss and accuracy, and the number of examples."""
    found = {}
    for name in run.task.evaluation:
        sums, count = run.task.evaluate(run.model, name)
        if not count:
            raise RunError(f"none of the {name} images can be read, such as {min(run.task.skipped())}")
        means = {metric: float(total) / count for metric, total in sums.items()}
        found[name] = run.task.measures(means) | {"count": count}
    run.model.eval()
    return found


def build_task(recipe: Recipe, **own: Callable[..., Any] | None) -> Any:
    """The task of a recipe on the device there is, in one process; a sentence where it cannot be built."""
    try:
        return create_task(recipe, torch.device("cuda" if torch.cuda.is_available() else "cpu"), **own)
    except (ValueError, TypeError) as error:
        raise RunError(f"the recipe cannot be built: {error_message(error)}") from error


def _check_shapes(folder: Path, weights: dict[str, Any], network: nn.Module) -> None:
    """Whether weights are those of a network, which needs no memory on the meta device: a forged recipe may be huge."""
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {k: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for k, v in weights.items()}
    for name in sorted(wanted.keys() | found.keys(), key=str):
        came, must = found.get(name, "missing"), wanted.get(name, "missing")
        if came != must:
            raise RunError(
                f"{folder} holds weights that do not fit its recipe: {name!s:.60} is {came}, but should be {must}"
            )


def _state(folder: Path, which: str) -> tuple[dict[str, Any], int]:
    where, said = folder / "checkpoints", list[str]()
    if not where.is_dir():
        inside = sorted(folder.glob(f"*/{where.name}"))
        hint = f"; did you mean {inside[0].parent}?" if inside else ""
        what = f"it has no folder {where.name}" if folder.is_dir() else "there is no such folder"
        raise RunError(f"{folder} is not the folder of a run: {what}{hint}")
    found = (checkpoint.best if which == "best" else checkpoint.latest)(where, said.append)
    if found is None:
        other = "last" if which == "best" else "best"
        there = (checkpoint.latest if which == "best" else checkpoint.best)(where, lambda _: None)
        hint = f"try --checkpoint {other}" if there else "it has no other either: train it again"
        raise RunError(f"{folder} has no {which} checkpoint{_because(said)}; {hint}")
    step, state = found
    for sentence in said:
        say(f"{sentence}; step {step} is taken instead", file=sys.stderr)
    wanted = {"recipe": dict, "model": dict, "ema": dict | None, "best": dict, "last": dict, "task": dict}
    for key, kind in wanted.items():
        if not isinstance(state, dict) or key not in state or not isinstance(state[key], kind):
            raise RunError(f"{folder} holds a checkpoint that is not of a run: {key!r} is missing or of another kind")
    return state, step


def _because(said: list[str]) -> str:
    return f" that can be read ({said[0]})" if said else ""

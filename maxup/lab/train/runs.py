"""Open the folder of a run, finished or not: its recipe, its task and the trained model."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maxup.errors import RunError, error_message
from maxup.lab.data.find import root_exists
from maxup.lab.output import say
from maxup.lab.recipes.load import SUFFIXES, list_recipes, recipe_from
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage import checkpoint
from maxup.lab.storage.signature import code_names, is_signed
from maxup.lab.tasks import create_task
from maxup.lab.train.evaluate import evaluate_split
from maxup.lab.user_code import is_importable

KINDS = {"vision": "an image run", "language": "a language-model run"}
FIELDS = {"recipe": dict, "model": dict, "ema": dict | None, "best": dict, "last": dict, "task": dict}


@dataclass
class Run:
    """A checkpoint of a run in memory.

    Attributes:
        task: Its data and objective.
        model: The model that training evaluated (the average of the weights if there is one), in evaluation mode.
        step: The step of the checkpoint.
        metrics: Those of its epoch, or {} in the first epoch.
        sources: `model_from` and `data_from`, if the run was trained with them.
    """

    recipe: Recipe
    task: Any
    model: nn.Module
    step: int
    metrics: dict[str, Any]
    sources: dict[str, Callable[..., Any] | None] = field(default_factory=dict)


def open_run(
    folder: Path,
    which: str = "last",
    *,
    task: str | None = None,
    root: str | None = None,
    accept_changed_data: bool = False,
    find_code: Callable[[str, str], Callable[..., Any] | None] | None = None,
    trust: bool = False,
    **sources: Callable[..., Any] | None,
) -> Run:
    """Build the task of a run and load the weights of a checkpoint.

    Nothing in the folder is executed. With `find_code`, the functions that the run names are imported, if this user
    trained the run in the current folder, or with `trust`.

    A damaged checkpoint is reported on stderr, and the one before it is used.

    Args:
        folder: The folder of the run.
        which: "best" or "last".
        task: The only task to accept.
        root: The folder of the data, if it has moved since training.
        accept_changed_data: Whether the images may differ from those of the training.
        find_code: Imports a function that the run was trained with, given MODULE:FUNCTION and its option.
        trust: Whether to import these functions even if their signature is missing or invalid.
        **sources: `model_from` and `data_from`, for a run that was trained with them.

    Raises:
        RunError: The folder, its checkpoint or its recipe cannot be used; or a CheckpointError or RecipeError.
    """
    state, step = _load(folder, which)
    recipe = recipe_from(state["recipe"])
    recipe.data.root = root or recipe.data.root
    if task not in (None, recipe.task):
        raise RunError(f"{folder} is {KINDS[recipe.task]}, but this command needs {KINDS[str(task)]}")
    identity = {key: value for key, value in state["task"].items() if key != "data" or not accept_changed_data}
    named = code_names(identity)
    missing = {option: name for option, name in named.items() if sources.get(option) is None}
    importable = all(map(is_importable, missing.values()))
    if missing and not (find_code and importable and (trust or is_signed(folder, named))):
        options = " ".join(f"--{option} {name:.80}" for option, name in missing.items())
        advice = (
            "without a signature of yours for this folder; change to the folder where you trained it, give the "
            "options, or add --trust to import it"
        )
        if not importable:
            again = " ".join(f"--{option} MODULE:FUNCTION" for option in missing)
            advice = f"which has no name that can be imported; give it again as {again}"
        raise RunError(f"{folder} was trained with custom code, {options}, {advice}")
    sources |= {option: find_code(name, f"--{option}") for option, name in missing.items() if find_code}
    if sources.get("data_from") is None and not root_exists(recipe.data.name, recipe.data.root):
        raise RunError(
            f"{folder} was trained on {recipe.data.root}, which does not exist here; pass its new path with --data.root"
        )
    # Initial weights and the precision of the steps are not needed again.
    model = replace(recipe.model, pretrained=False, weights=None, new_head=False)
    built = build_task(replace(recipe, model=model, precision="no"), **sources)
    built.check_identity(identity, folder)
    try:
        built.model.load_state_dict(state["model"] if state["ema"] is None else state["ema"])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise RunError(f"the weights in {folder} do not fit its recipe: {error_message(error)}") from error
    return Run(recipe, built, built.model.eval(), step, state["best" if which == "best" else "last"], sources)


def evaluate(run: Run) -> dict[str, dict[str, float]]:
    """Return the metrics of every split, such as loss and accuracy, and the number of examples as "count"."""
    measured = {split: evaluate_split(run.task, run.model, split) for split in run.task.evaluation}
    run.model.eval()
    return {split: metrics | {"count": count} for split, (metrics, count) in measured.items()}


def build_task(recipe: Recipe, **options: Callable[..., Any] | None) -> Any:
    """Build the task of a recipe in one process, on the GPU if there is one."""
    try:
        return create_task(recipe, torch.device("cuda" if torch.cuda.is_available() else "cpu"), **options)
    except (ValueError, TypeError) as error:
        raise RunError(f"the recipe cannot be built: {error_message(error)}") from error


def _load(folder: Path, which: str) -> tuple[dict[str, Any], int]:
    checkpoints, warnings = folder / "checkpoints", list[str]()
    if not folder.is_dir() and (str(folder) in list_recipes() or folder.suffix in SUFFIXES):
        raise RunError(
            f"{folder} is a recipe, but this command needs a trained network; train it first (maxup train {folder}), "
            "then give the run folder"
        )
    if not checkpoints.is_dir():
        inside = sorted(folder.glob(f"*/{checkpoints.name}"))
        hint = f"; did you mean {inside[0].parent}?" if inside else ""
        why = f"it has no {checkpoints.name}/" if folder.is_dir() else "it does not exist"
        raise RunError(f"{folder} is not a run folder: {why}{hint}")
    readers = {"best": checkpoint.best, "last": checkpoint.latest}
    found = readers[which](checkpoints, warnings.append)
    if found is None:
        other = "last" if which == "best" else "best"
        usable = readers[other](checkpoints, lambda _: None)
        hint = f"try --checkpoint {other}" if usable else "there is no other checkpoint; train again"
        why = f" that can be read ({warnings[0]})" if warnings else ""
        raise RunError(f"{folder} has no {which} checkpoint{why}; {hint}")
    step, state = found
    for warning in warnings:
        say(f"{warning}; step {step} is used instead", file=sys.stderr)
    for key, kind in FIELDS.items():
        if not isinstance(state, dict) or key not in state or not isinstance(state[key], kind):
            raise RunError(f"the checkpoint in {folder} is invalid: {key!r} is missing or has the wrong type")
    return state, step

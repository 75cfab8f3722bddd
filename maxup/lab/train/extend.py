"""Continue a run for more epochs, or set it aside to start over.

A run can be extended if the steps that are done would have been the same in the longer run. Milestones and warmups are
fractions of the epochs, so they must be given again for the longer run; the error says which values keep the past.
"""

import math
from collections.abc import Callable
from pathlib import Path

from maxup.errors import RunError, error_message
from maxup.lab.recipes.objectives import epochs_without_selection
from maxup.lab.recipes.schema import Recipe
from maxup.lab.storage.locks import locked
from maxup.lab.train.optim import learning_rate

SCHEDULE = ("epochs", "optim.milestones", "optim.warmup", "optim.average_from", "objective.warmup", "objective.start")
WHOLE_RUN = ("cosine", "triangle")  # schedules that depend on the number of epochs from the first step
CONTENTS = ("checkpoints", "run.json", "metrics.jsonl", "not-finite")  # of the folder of a run


def check_extension(
    before: Recipe, now: Recipe, changed: list[str], *, done: int, steps: Callable[[int], int], folder: Path
) -> None:
    """Raise a RunError if a run cannot be continued with a longer recipe.

    Args:
        before: The recipe of the run.
        now: The recipe to continue with.
        changed: The settings in which they differ.
        done: Steps done so far.
        steps: Returns the number of steps in n epochs.
        folder: The folder of the run, for the message.
    """
    advice = "choose another folder with --out, or start over with --restart"
    if other := [name for name in changed if name not in SCHEDULE]:
        raise RunError(
            f"--extend changes only the number of epochs, but {', '.join(other)} differ in {folder}; {advice}"
        )
    if now.epochs < before.epochs:
        raise RunError(f"{folder} has {before.epochs} epochs; to extend it, give more than that with --epochs")
    if before.optim.restarts:
        raise RunError(f"{folder} cannot be extended: optim.restarts ends its stages by the number of epochs; {advice}")
    if before.optim.schedule in WHOLE_RUN:
        raise RunError(
            f"{folder} cannot be extended: a {before.optim.schedule} schedule depends on the number of epochs from its "
            f"first step; {advice}, or train with --optim.schedule constant or steps"
        )
    if before.optim.lookahead:
        raise RunError(
            f"{folder} cannot be extended: the decay of optim.lookahead depends on the number of epochs from its first "
            f"step; {advice}"
        )
    if keep := _settings_that_keep_the_past(before, now, done=done, steps=steps):
        raise RunError(f"{folder} can be extended only if the steps that are done stay the same; add {' '.join(keep)}")


def is_extensible(recipe: Recipe) -> bool:
    """Whether a run of this recipe may be extended, perhaps with other milestones and warmups."""
    optim = recipe.optim
    return optim.schedule not in WHOLE_RUN and not optim.lookahead and not optim.restarts


def set_aside(folder: Path, say: Callable[[str], None]) -> None:
    """Rename the folder of a run to FOLDER-old-1, or the next free number, so that a new run can begin there.

    A folder without a run stays as it is.

    Raises:
        RunError: The folder cannot be renamed.
        CheckpointError: Another process is using it.
    """
    if not any((folder / name).exists() for name in CONTENTS):
        return
    place, number = folder.absolute(), 1
    if Path.cwd().is_relative_to(place.resolve()):
        raise RunError(f"--restart cannot rename {folder}, which is the current folder or above it; run it elsewhere")
    while (old := place.with_name(f"{place.name}-old-{number}")).exists():
        number += 1
    with locked(folder):
        try:
            place.rename(old)
        except OSError as error:
            raise RunError(f"cannot rename {folder} to {old.name}: {error_message(error)}") from error
    say(f"the earlier run is now in {folder.with_name(old.name)}")


def _settings_that_keep_the_past(before: Recipe, now: Recipe, *, done: int, steps: Callable[[int], int]) -> list[str]:
    """Return the options to add, so that learning rate, averaging and warmup of the first steps are unchanged."""
    keep, scale = [], before.epochs / now.epochs
    totals = steps(before.epochs), steps(now.epochs)
    rates = (
        [learning_rate(r.optim, step / n) for step in range(done)] for r, n in zip((before, now), totals, strict=True)
    )
    if not all(math.isclose(old, new, rel_tol=1e-6) for old, new in zip(*rates, strict=True)):
        if before.optim.warmup:
            keep.append(f"--optim.warmup {before.optim.warmup * scale:.10g}")
        if before.optim.schedule == "steps":
            keep.append(f"--optim.milestones [{','.join(f'{m * scale:.10g}' for m in before.optim.milestones)}]")
    start, later = (r.optim.average_from for r in (before, now))
    same = start == later if start is None or later is None else math.isclose(start * scale, later, rel_tol=1e-6)
    if before.optim.name == "asgd" and not same:
        keep.append(f"--optim.average_from {'null' if start is None else f'{start * scale:.10g}'}")
    first, second = (epochs_without_selection(r.objective, r.epochs) for r in (before, now))
    if first != second:
        if before.objective.get("start") or now.objective.get("start"):
            keep.append(f"--objective.start {first / now.epochs:.10g}")
            if now.objective.get("warmup"):
                keep.append("--objective.warmup 0")
        else:
            keep.append(f"--objective.warmup {first}")
    return keep

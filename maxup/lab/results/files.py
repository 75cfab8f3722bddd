"""Ours: the results of finished runs, one small JSON each, and which recipe, seed, m and budget each one is of.

    results/runs/<recipe>/seed-0.json                    the recipe as it is
    results/runs/<recipe>/seed-0-m-10-budget-0.3.json    with m = 10 instead of its own, for 0.3 of its epochs

A run's own folder, <runs>/<recipe>/seed-0/run.json, holds the same.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from maxup.errors import RecipeError, error_message
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import list_recipes, parse_recipe
from maxup.lab.recipes.objectives import resolve_objective
from maxup.lab.recipes.schema import Recipe, copies_of
from maxup.lab.storage import atomic_io
from maxup.lab.upgrade import upgrade_recipe
from maxup.smoothing.sampling import plan, reach

LIMITS = {"accuracy": (0, 1), "perplexity": (1, math.inf)}
LONGEST = 1e9  # seconds; three decades
NAME = re.compile(r"seed-(\d+)(?:-m-(\d+))?(?:-budget-([\d.e-]+))?", re.ASCII)


@dataclass(frozen=True)
class Result:
    """A finished run."""

    recipe: str
    """The recipe's name."""
    seed: int
    m: int
    """Copies of every example; 1 for the standard objective."""
    own_m: bool
    """Whether m is the recipe's own."""
    budget: float
    """Its epochs in those of the recipe."""
    last: dict[str, float]
    """What was measured at the end."""
    seconds: float | None
    """Of training alone; in all, where the run did not tell them apart; None where it shared its GPU with others."""
    environment: dict[str, Any]
    reach: float = math.inf
    """The largest radius that its certificates could have."""
    curve: Path | None = None
    """Its metrics.jsonl, where the run's folder is there."""
    steps: int | None = None
    """Steps of the run whose curve that is."""


def file_name(seed: int, *, m: int | None = None, budget: float = 1.0) -> str:
    """The name of a result without its ending; `m` only where it is not the recipe's own.

    Example:
        >>> file_name(0), file_name(3, m=10, budget=0.3)
        ('seed-0', 'seed-3-m-10-budget-0.3')
    """
    return f"seed-{seed}" + (f"-m-{m}" if m is not None else "") + (f"-budget-{budget:g}" if budget != 1 else "")


def load_results(results: Path, runs: Path, recipes: dict[str, str] | None = None) -> tuple[list[Result], list[str]]:
    """The results under two folders, and a sentence for each file that is left out.

    Args:
        results: Folder of result files.
        runs: Folder of runs; a run that also has a result file gives only its curve.
        recipes: Recipes in files of their own, by name.
    """
    found: dict[tuple[str, int, int, float], Result] = {}
    notes = []
    for name, path, stem in (*_result_files(results), *_run_files(runs)):
        try:
            result = _result(name, path, stem, (recipes or {}).get(name, name))
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:  # any content
            notes.append(f"{path} is left out: {error_message(error)}")
            continue
        key = (result.recipe, result.seed, result.m, result.budget)
        old = found.get(key)
        if old is None:
            found[key] = result
        elif old.curve is None and result.curve is not None and old.last == result.last:
            found[key] = Result(**{**vars(old), "curve": result.curve, "steps": result.steps})
        else:
            notes.append(f"{path} is left out: another result is of the same recipe, seed, m and budget")
    return [found[key] for key in sorted(found)], notes


def read_run(path: Path) -> dict[str, Any]:
    """A run.json or result file, checked to be one."""
    match atomic_io.read_json(path):
        case {
            "recipe": dict(recipe),
            "seed": int(),
            "last": dict(),
            "seconds": int() | float(),
            "environment": dict(),
        } as run:
            return run | {"recipe": upgrade_recipe(recipe)}
    raise ValueError("it is not the result of a run")


def _result(name: str, path: Path, stem: str, recipe: str) -> Result:
    run = read_run(path)
    said = run["recipe"]
    own = [f"--{option} {value}" for option, value in run.get("task", {}).items() if option.endswith("_from") and value]
    if own:
        raise ValueError(f"it is not of the recipe alone, but with {' '.join(own)}")
    m = int(resolve_objective(said.get("objective", "standard")).get("m", 1))
    match = NAME.fullmatch(stem)
    if match and int(match[1]) != run["seed"]:
        raise ValueError(f"its name says seed {match[1]}, its content seed {run['seed']}")
    named = float(match[3]) if match and match[3] else 1.0
    known = known_recipe(recipe)
    if known is None:
        own_m, budget = not (match and match[2]), named
    else:
        changed = [key for key in difference(said, known) if key not in ("seed", "epochs", "objective.m")]
        if changed:
            raise ValueError(f"the recipe {name} says otherwise now ({', '.join(changed)})")
        epochs = int(said.get("epochs", known.epochs))
        own_m = m == copies_of(known)
        budget = epochs / known.epochs
        budget = named if budget != 1 and epochs == scaled(known.epochs, named) else float(f"{budget:.3g}")
    curve = path.parent / "metrics.jsonl" if path.name == "run.json" else None
    last = {k: float(v) for k, v in run["last"].items() if isinstance(v, int | float)}
    seconds = float(run.get("training_seconds", run["seconds"]))
    _check(last, seconds)
    match run.get("certified"):
        case None:
            largest = math.inf
        case {"n": int(n), "alpha": int(alpha) | float(alpha), "sigma": int(s) | float(s), "adaptive": bool(early)}:
            largest = reach(plan(n, alpha, early=early), s)
        case _:
            raise ValueError("its record of how it was certified is not whole")
    return Result(
        recipe=name, seed=run["seed"], m=m, own_m=own_m, budget=budget, last=last,
        seconds=None if run["environment"].get("shared_gpu") else seconds,
        environment=run["environment"], reach=largest, curve=curve,
        steps=run["steps"] if curve and type(run.get("steps")) is int else None,
    )  # fmt: skip


def _check(last: dict[str, float], seconds: float) -> None:
    """Refuse what no run can have measured; a perplexity may be infinite."""
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"a run cannot have trained for {seconds:g} seconds")
    for key, value in last.items():
        for word, (low, high) in LIMITS.items():
            if word in key and not low <= value <= high:
                raise ValueError(f"its {key} is {value:g}, which is not between {low:g} and {high:g}")


def mean_seconds(results: Sequence[Result]) -> float | None:
    """The mean training time of those results that have one."""
    known = [result.seconds for result in results if result.seconds is not None]
    return sum(known) / len(known) if known else None


def scaled(epochs: int, budget: float) -> int:
    """The epochs of a budget: at least one.

    Example:
        >>> scaled(200, 0.3), scaled(5, 0.01)
        (60, 1)
    """
    return max(1, round(epochs * budget))


def budget_name(budget: float, recipes: Iterable[str]) -> str:
    """What a budget is of recipes: epochs where all have as many and the budget is less, else the number.

    Example:
        >>> budget_name(0.3, ["cifar10/resnet110-cutout"]), budget_name(0.3, ["unknown"])
        ('60 of 200 epochs', 'budget 0.3')
    """
    epochs = {known.epochs if (known := known_recipe(name)) else 0 for name in recipes}
    most = epochs.pop() if len(epochs) == 1 else 0
    return f"{scaled(most, budget)} of {most} epochs" if most and budget < 1 else f"budget {budget:g}"


@cache
def known_recipe(name: str) -> Recipe | None:
    """The recipe of that name, or None where there is none yet."""
    if name not in list_recipes() and not name.endswith((".yaml", ".yml")):
        return None
    try:
        return parse_recipe(name, [])
    except RecipeError:
        return None


def _result_files(root: Path) -> Iterator[tuple[str, Path, str]]:
    for path in sorted(root.rglob("seed-*.json")):
        yield _below(path.parent, root), path, path.stem


def _run_files(root: Path) -> Iterator[tuple[str, Path, str]]:
    for path in sorted(root.rglob("run.json")):
        folder = path.parent
        if "runs" in folder.relative_to(root).parts:  # of a comparison, which keeps its own there
            continue
        yield _below(folder.parent if NAME.fullmatch(folder.name) else folder, root), path, folder.name


def _below(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix()

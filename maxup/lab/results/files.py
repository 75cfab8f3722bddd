"""Result files of finished runs, with the recipe, seed, m and budget of each.

    results/runs/<recipe>/seed-0.json                    the recipe as it is
    results/runs/<recipe>/seed-0-m-10-budget-0.3.json    with m = 10, for 0.3 of the recipe's epochs

The run.json in the folder of a run, <runs>/<recipe>/seed-0/run.json, has the same content. A run that differs from
the recipe of its name in other settings, or that was trained with your code, has a separate name, such as
"digits/mlp-gaussian (optim.lr 0.05)".
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from maxup.errors import RecipeError, error_message, format_value
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import list_recipes, parse_recipe
from maxup.lab.recipes.resolve import resolve_objective
from maxup.lab.recipes.schema import Recipe, flat, num_copies
from maxup.lab.storage import atomic_io
from maxup.lab.upgrade import upgrade_recipe
from maxup.smoothing.sampling import max_radius, plan

LIMITS = {"accuracy": (0, 1), "perplexity": (1, math.inf)}
USER_DATA = ("imagefolder", "text")  # data sets whose content is that of data.root
LONGEST = 1e9  # seconds, about 30 years
OLD = re.compile(r"-old-\d+$", re.ASCII)  # the folder of a run that was restarted
NAME = re.compile(r"seed-(\d+)(?:-m-(\d+))?(?:-budget-([\d.e-]+))?", re.ASCII)


@dataclass(frozen=True)
class Result:
    """A finished run."""

    recipe: str
    """Name of the recipe, followed by `variant` in parentheses if there is one."""
    seed: int
    m: int
    """Copies per example; 1 for the standard objective."""
    default_m: bool
    """Whether m is the recipe's value."""
    budget: float
    """Epochs of the run as a fraction of the recipe's epochs."""
    last: dict[str, float]
    """Metrics at the end of the run."""
    seconds: float | None
    """Training time (total time for old runs). None if the run shared its GPU."""
    environment: dict[str, Any]
    reach: float = math.inf
    """The largest radius that its certificates can have."""
    curve: Path | None = None
    """Its metrics.jsonl, if the folder of the run exists."""
    steps: int | None = None
    """Steps of the run that the curve belongs to."""
    name: str = ""
    """Name of the recipe alone."""
    variant: str = ""
    """What differs from the recipe of that name, or from the one that was trained: your code and changed settings."""
    trained: str = ""
    """The recipe that was given to `maxup train`, if the run recorded it."""


def file_name(seed: int, *, m: int | None = None, budget: float = 1.0) -> str:
    """Return the name of a result file without its suffix. Give `m` only if it is not the recipe's value.

    Example:
        >>> file_name(0), file_name(3, m=10, budget=0.3)
        ('seed-0', 'seed-3-m-10-budget-0.3')
    """
    return f"seed-{seed}" + (f"-m-{m}" if m is not None else "") + (f"-budget-{budget:g}" if budget != 1 else "")


def load_results(
    results: Path, runs: Path, recipes: dict[str, str] | None = None, *, by_recipe: bool = False
) -> tuple[list[Result], list[str]]:
    """Load all results in two folders.

    Args:
        results: Folder of result files.
        runs: Folder of runs. If a run also has a result file, only its curve is used.
        recipes: Recipe files, by the name of their results.
        by_recipe: Whether a run in a folder of any name gets the name of the recipe that was trained.

    Returns:
        The results, and a message for each file that is skipped.
    """
    loaded: list[tuple[Path, Result]] = []
    found: dict[tuple[str, int, int, float], Result] = {}
    notes = []
    for name, path, stem in (*_result_files(results), *_run_files(runs)):
        try:
            loaded.append((path, _result(name, path, stem, (recipes or {}).get(name, name))))
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:  # any content
            notes.append(f"{path} is skipped: {error_message(error)}")
    known, variants = set(list_recipes()), {(result.name, result.variant) for _, result in loaded}
    for path, result in loaded:
        if by_recipe and result.name not in known and result.trained in known:
            result = replace(result, name=result.trained, recipe=_full_name(result.trained, result.variant))
        elif result.name not in known and sum(name == result.name for name, _ in variants) == 1:
            result = replace(result, recipe=result.name)  # your recipe: all its runs are alike
        key = (result.recipe, result.seed, result.m, result.budget)
        old = found.get(key)
        if old is None:
            found[key] = result
        elif old.curve is None and result.curve is not None and old.last == result.last:
            found[key] = replace(old, curve=result.curve, steps=result.steps)
        else:
            notes.append(f"{path} is skipped: another result has the same recipe, seed, m and budget")
    return [found[key] for key in sorted(found)], notes


def read_run(path: Path) -> dict[str, Any]:
    """Read a run.json or a result file. Raises ValueError if it is not one."""
    match atomic_io.read_json(path):
        case {
            "recipe": dict(recipe),
            "seed": int(),
            "last": dict(),
            "seconds": int() | float(),
            "environment": dict(),
        } as run:
            return run | {"recipe": upgrade_recipe(recipe)}
    raise ValueError("it is not a result file")


def _result(name: str, path: Path, stem: str, recipe: str) -> Result:
    run = read_run(path)
    used = run["recipe"]
    changes = [f"--{key} {value:.80}" for key, value in run.get("task", {}).items() if key.endswith("_from") and value]
    m = int(resolve_objective(used.get("objective", "standard")).get("m", 1))
    match = NAME.fullmatch(stem)
    if match and int(match[1]) != run["seed"]:
        raise ValueError(f"the file name says seed {match[1]}, but the content says seed {run['seed']}")
    named = float(match[3]) if match and match[3] else 1.0
    known, trained = known_recipe(recipe), str(run.get("recipe_name", ""))
    if known is None and trained in list_recipes():  # a recipe in a folder with another name
        known = known_recipe(trained)
    if known is None:
        default_m, budget = not (match and match[2]), named
    else:
        changes += _changes(used, known, ["seed", "objective.m", "epochs"])
        epochs = int(used.get("epochs", known.epochs))
        default_m = m == num_copies(known)
        budget = epochs / known.epochs
        budget = named if budget != 1 and epochs == scale_epochs(known.epochs, named) else float(f"{budget:.3g}")
    curve = path.parent / "metrics.jsonl" if path.name == "run.json" else None
    last = {k: float(v) for k, v in run["last"].items() if isinstance(v, int | float)}
    seconds = float(run.get("training_seconds", run["seconds"]))
    _check(last, seconds)
    match run.get("certified"):
        case None:
            largest = math.inf
        case {"n": int(n), "alpha": int(alpha) | float(alpha), "sigma": int(s) | float(s), "adaptive": bool(early)}:
            largest = max_radius(plan(n, alpha, early=early), s)
        case _:
            raise ValueError("its certification settings are incomplete")
    variant = ", ".join(changes)
    return Result(
        recipe=_full_name(name, variant), seed=run["seed"], m=m, default_m=default_m, budget=budget,
        last=last, name=name, variant=variant, trained=trained,
        seconds=None if run["environment"].get("shared_gpu") else seconds,
        environment=run["environment"], reach=largest, curve=curve,
        steps=run["steps"] if curve and type(run.get("steps")) is int else None,
    )  # fmt: skip


def _full_name(name: str, variant: str) -> str:
    return f"{name} ({variant})" if variant else name


def _changes(used: dict[str, Any], recipe: Recipe, ignore: Sequence[str]) -> list[str]:
    """Return the settings of a run that differ from a recipe, with their values."""
    settings = flat({**used, "objective": resolve_objective(used.get("objective", "standard"))})
    changed = difference(used, recipe, ignore=["data.root", "data.workers", "eval_every", *ignore])
    if settings.get("data.name") in USER_DATA and settings.get("data.root") != recipe.data.root:
        changed.append("data.root")
    if "objective.name" in changed:  # the arguments of another objective are missing, not changed
        changed = [key for key in changed if key in settings or not key.startswith("objective.")]
    return [f"{key} {format_value(settings.get(key, 'default'))}" for key in changed]


def _check(last: dict[str, float], seconds: float) -> None:
    """Check that the values are possible. A perplexity may be infinite."""
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"its training time is {seconds:g} seconds, but must be between 0 and {LONGEST:g}")
    for key, value in last.items():
        for word, (low, high) in LIMITS.items():
            if word in key and not low <= value <= high:
                raise ValueError(f"its {key} is {value:g}, but must be between {low:g} and {high:g}")


def mean_seconds(results: Sequence[Result]) -> float | None:
    """Return the mean training time of the results that have one."""
    known = [result.seconds for result in results if result.seconds is not None]
    return sum(known) / len(known) if known else None


def scale_epochs(epochs: int, budget: float) -> int:
    """Return the number of epochs of a budget, at least one.

    Example:
        >>> scale_epochs(200, 0.3), scale_epochs(5, 0.01)
        (60, 1)
    """
    return max(1, round(epochs * budget))


def budget_name(budget: float, recipes: Iterable[str]) -> str:
    """Describe a budget: in epochs if it is below 1 and all recipes have the same number, otherwise in percent.

    Example:
        >>> budget_name(0.3, ["cifar10/resnet110-cutout"]), budget_name(0.3, ["unknown"])
        ('60 of 200 epochs', '30 % of the epochs')
    """
    epochs = {known.epochs if (known := known_recipe(name)) else 0 for name in recipes}
    total = epochs.pop() if len(epochs) == 1 else 0
    if total and budget < 1:
        return f"{scale_epochs(total, budget)} of {total} epochs"
    return f"{100 * budget:.3g} % of the epochs"


@cache
def known_recipe(name: str) -> Recipe | None:
    """Return a recipe by name or file, or None if it does not exist or is invalid."""
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
        if "runs" in folder.relative_to(root).parts or OLD.search(folder.name):  # of a comparison, or set aside
            continue
        yield _below(folder.parent if NAME.fullmatch(folder.name) else folder, root), path, folder.name


def _below(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix()

"""Twins: one recipe trained with different objectives, the same seeds, equal epochs and equal time.

A seed decides the initial weights and the order, whatever the objective is. With `data.train_size` it also chooses the
images: then the rows of a seed share them, and differences are paired. Otherwise a shared seed makes no pair, and the
interval of a difference is Welch's.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from maxup.errors import RunError
from maxup.lab.environment import environment
from maxup.lab.experiments.measure import join_lone, measure
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.objectives import override_objective, resolve_objective
from maxup.lab.recipes.schema import Recipe
from maxup.lab.results.comparison import METRICS, Runs, gain, short, show, summary, twin
from maxup.lab.storage.atomic_io import read_json, write_json
from maxup.lab.train.loop import train
from maxup.lab.train.runs import build_task, open_run
from maxup.objectives.adversarial import Adversarial

COPIES = 20


@dataclass
class Attack:
    """How the trained models are attacked."""

    radius: float
    """Of the ball, in units of what the network takes."""
    p: float = 2
    steps: int = 10

    def build(self, clip: tuple[float, float] | None = None) -> Adversarial:
        return Adversarial(self.radius, p=self.p, steps=self.steps, clip=clip, norm="running")


def rows(recipe: Recipe, ms: list[int], objectives: list[str], attack: Attack) -> dict[str, Recipe]:
    """The recipes to compare, by name. The baseline with m = 1 comes first.

    Example:
        >>> list(rows(Recipe(), [1, 4], ["average", "hard_examples"], Attack(0.5)))
        ['m = 1', 'm = 4', 'average of 4', 'hardest 25 %']
    """
    own = resolve_objective(recipe.objective)

    def row(name: str, **arguments: Any) -> Recipe:
        return replace(recipe, objective=resolve_objective(override_objective(own, {"name": name, **arguments})))

    found = {"m = 1": row("standard")}
    more = [m for m in ms if m > 1]
    found |= {f"m = {m}": row("maxup", m=m) for m in more}
    found |= {f"average of {m}": row("average", m=m) for m in more if "average" in objectives}
    if "adversarial" in objectives:
        found[f"PGD, radius {attack.radius:g}"] = row("adversarial", **asdict(attack))
    if "hard_examples" in objectives:
        hard = row("hard_examples")
        found[f"hardest {100 * hard.objective['keep']:g} %"] = hard
    if recipe.task != "vision":
        raise RunError("compare measures classifiers of images; for text use maxup reproduce and maxup report")
    if own["name"] not in ("standard", "maxup", *objectives):
        raise RunError(
            f"the recipe's objective is {own['name']}, which is no row of this comparison; add --objectives "
            "average, adversarial or hard_examples if it is one of these, or compare a recipe that has another"
        )
    if len(found) == 1:
        raise RunError("there is nothing to compare with m = 1; give --m a number above 1, or --objectives")
    return found


def compare(
    recipe: Recipe,
    folder: Path,
    *,
    seeds: int,
    ms: list[int],
    objectives: list[str],
    attack: Attack,
    equal_time: bool = True,
    say: Callable[[str], Any] = print,
    quiet: bool = True,
    **own: Callable[..., Any] | None,
) -> dict[str, Any]:
    """Train and measure every row with every seed; runs that are finished in the folder are not trained again.

    Args:
        recipe: What is trained; its seed is the first.
        folder: Where `runs/ROW/seed-N` go, and compare.json.
        seeds: How many, at least 2.
        ms: Copies of the MaxUp rows; 1 is the twin, which is always there.
        objectives: Further ones: "average", "adversarial", "hard_examples".
        attack: What the trained models are attacked with.
        equal_time: Whether to train the twin once more for as long as each MaxUp row took.
        say: Gets a line for every run.
        quiet: Show nothing of the training itself.
        own: `model_from` and `data_from`, as `train` takes them.

    Returns:
        What is also written to compare.json.
    """
    planned = rows(recipe, ms, objectives, attack)
    for row in planned.values():
        task = build_task(row, **own)  # a recipe that cannot be built is refused before anything is trained
    numbers = list(range(recipe.seed, recipe.seed + seeds))
    where, here = folder / "runs", environment()

    width = max(map(len, planned)) + (15 if equal_time else 0)

    def run(name: str, row: Recipe, seed: int) -> dict[str, float]:
        place = where / _slug(name, row, recipe) / f"seed-{seed}"
        found, made = run_once(replace(row, seed=seed), place, attack, quiet=quiet, **own)
        if other := [k for k in ("hardware", "threads") if made.get(k) != here[k]]:
            say(f"note: {place} was trained with other {' and '.join(other)}: its seconds do not compare")
        say(f"seed {seed}  {name:<{width}}  {_line(found)}")
        return found

    paired = recipe.data.train_size is not None
    runs: Runs = {name: [] for name in planned}
    for seed in numbers:  # row by row within a seed, so that a machine that slows down slows all rows down
        for name, row in planned.items():
            runs[name].append(run(name, row, seed))
    stretched: dict[str, dict[str, Any]] = {}
    for name in [n for n, row in planned.items() if row.objective["name"] == "maxup"] if equal_time else []:
        ratio = sum(r["seconds"] for r in runs[name]) / sum(r["seconds"] for r in runs[twin(runs)])
        epochs = max(1, round(ratio * recipe.epochs))
        longer = f"m = 1, time of {name}"
        runs[longer] = [run(longer, replace(planned["m = 1"], epochs=epochs), seed) for seed in numbers]
        stretched[longer] = {"ratio": ratio, "epochs": epochs, "gain": gain(runs[name], runs[longer], paired=paired)}
    result = {
        "format": "maxup-compare",
        "version": 1,
        "recipe": asdict(recipe),
        "task": task.identity,
        "seeds": numbers,
        "copies": COPIES,
        "attack": asdict(attack),
        "equal_time": stretched,
        "paired": paired,
        "summary": summary(runs, paired=paired),
        "runs": runs,
        "environment": here,
    }
    write_json(folder / "compare.json", result)
    return result


def run_once(
    recipe: Recipe, folder: Path, attack: Attack, *, quiet: bool = True, **own: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    """Train a recipe, unless its run is finished, and measure the last epoch's weights on the test images.

    Returns:
        The metrics, and where it was trained.
    """
    settings: dict[str, Any] = {"save_best": False, "quiet": quiet, **own}
    finished = _finished(recipe, folder) or train(recipe, folder, **settings)
    run = open_run(folder, "last", task="vision", root=recipe.data.root, **own)
    task = run.task
    if "test" not in task.evaluation:
        raise RunError(f"{recipe.data.name} has no test images to compare on")
    batches = join_lone((task.prepare(x), y) for _, x, y in task.evaluation["test"])
    drawn = build_perturbation(recipe.perturb, len(task.train.classes), **task.pixels)
    built = attack.build(clip=(0.0, 1.0) if recipe.model.normalize else None)  # where x is pixels, it stays so
    found = measure(run.model, batches, drawn, copies=COPIES, attack=built, seed=recipe.seed)
    about = {"seed": recipe.seed, "epochs": recipe.epochs}
    return about | found | {"seconds": finished["training_seconds"]}, finished["environment"]


def _finished(recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """A run's record, if it has reached its end with this very recipe."""
    try:
        record = read_json(folder / "run.json")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / 'run.json'} cannot be read ({error}); remove {folder} to train again") from None
    if not isinstance(record, dict) or not {"recipe", "training_seconds", "environment"} <= set(record):
        raise RunError(f"{folder / 'run.json'} is not the record of a run; remove {folder} to train again")
    return record if not difference(record["recipe"], recipe, ignore=()) else None


def _slug(name: str, row: Recipe, recipe: Recipe) -> str:
    """A row's folder; that of a stretched one tells its epochs, since another measured ratio gives other ones."""
    name = "m = 1" if row.objective["name"] == "standard" else name
    more = f"-{row.epochs}-epochs" if row.epochs != recipe.epochs else ""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") + more


def _line(run: dict[str, float]) -> str:
    return "  ".join(f"{short(metric)} {show(metric, run[metric])}" for metric in METRICS if metric in run)

"""The jobs of a table: one training per recipe, m and seed; and whether its result exists."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maxup.errors import error_message
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import list_recipes, parse_recipe, run_name
from maxup.lab.recipes.schema import Recipe, gaussian_sigma, num_copies
from maxup.lab.results.files import file_name, read_run, scale_epochs
from maxup.lab.results.paper import Table
from maxup.lab.storage import atomic_io


@dataclass(frozen=True)
class Job:
    """A training: a recipe with a seed."""

    recipe: str
    """Name or file of the recipe."""
    seed: int
    epochs: int
    budget: float = 1.0
    m: int | None = None
    """Copies per example, if not the recipe's."""
    restarts: int = 0
    """Stages after the first, each of at most `epochs` epochs."""

    @property
    def name(self) -> str:
        """Name of its result and of its folder."""
        return f"{run_name(self.recipe)}/{file_name(self.seed, m=self.m, budget=self.budget)}"

    @property
    def arguments(self) -> list[str]:
        """Arguments of `maxup train`."""
        return [self.recipe, *self.overrides, *(["--certify"] if self.certifies else [])]

    @property
    def overrides(self) -> list[str]:
        """Settings that differ from the recipe."""
        copies = [] if self.m is None else ["--objective.m", str(self.m)]
        return ["--seed", str(self.seed), "--epochs", str(self.epochs), *copies]

    @property
    def certifies(self) -> bool:
        """Whether its result includes certificates, because it is trained with noise on pixels."""
        return gaussian_sigma(self.resolved()) is not None

    def resolved(self) -> Recipe:
        """Return the recipe with the overrides applied."""
        return parse_recipe(self.recipe, self.overrides)


def make_jobs(table: Table, seeds: int, budget: float = 1.0) -> tuple[list[Job], list[str]]:
    """Return the jobs of a table, and the names of recipes that do not exist. All jobs of seed 0 come first."""
    known, found, missing = list_recipes(), [], []
    recipes = [(name, row) for row in table.rows.values() if row.recipe for name in (row.recipe, *row.grid)]
    for name, row in recipes:
        if name not in known and not name.endswith((".yaml", ".yml")):
            missing.append(name)
            continue
        recipe = parse_recipe(name, [])
        epochs = scale_epochs(recipe.epochs, budget)
        ms: list[int | None] = [*row.copies] or [row.m]
        for m in ms:
            other = "m" in recipe.objective and m not in (None, num_copies(recipe))
            part = 1.0 if epochs == recipe.epochs else budget
            found.append((name, epochs, part, m if other else None, recipe.optim.restarts))
    unique = dict.fromkeys(found)  # two rows may share a recipe
    jobs = [Job(recipe, seed, epochs, b, m, r) for seed in range(seeds) for recipe, epochs, b, m, r in unique]
    return jobs, list(dict.fromkeys(missing))


def state(job: Job, results: Path) -> str:
    """Return "to do", "done", or why an existing result file cannot be used."""
    path = results / f"{job.name}.json"
    if not path.exists():
        return "to do"
    try:
        changed = difference(read_run(path)["recipe"], job.resolved())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"{path} cannot be used ({error_message(error)}); remove it to train again"
    if changed:
        names = ", ".join(changed)
        return f"{path} is of a different version of the recipe (changed: {names}); remove it to train again"
    return "done"


def keep(job: Job, folder: Path, results: Path) -> bool:
    """Copy the run.json of a finished run to the results, atomically. Returns whether the job is done."""
    path = results / f"{job.name}.json"
    if path.exists():
        return state(job, results) == "done"
    try:
        run = read_run(folder / "run.json")
        if difference(run["recipe"], job.resolved()) or (job.certifies and "certified" not in run):
            return False
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_io.remove_leftovers(path.parent, glob.escape(path.name))
    atomic_io.replace(path, atomic_io.read(folder / "run.json"))
    return True


def describe(jobs: Sequence[Job], states: Sequence[str], missing: Sequence[str]) -> list[str]:
    """Return one line per job and per missing recipe."""
    width = max((len(job.name) for job in jobs), default=0)
    lines = []
    for job, status in zip(jobs, states, strict=True):
        limit = f", up to {job.epochs * (1 + job.restarts)} with restarts" if job.restarts else ""
        lines.append(f"{job.name:<{width}}  {job.epochs:>4} epochs{limit}  {status}")
    return lines + [f"{recipe}: there is no such recipe" for recipe in missing]

"""What a table asks for: one training for each of its recipes and seeds, and whether its result is there."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maxup.errors import error_message
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.load import list_recipes, parse_recipe, run_name
from maxup.lab.recipes.schema import Recipe, copies_of, noise_of
from maxup.lab.results.files import file_name, read_run, scaled
from maxup.lab.results.paper import Table
from maxup.lab.storage import atomic_io


@dataclass(frozen=True)
class Job:
    """A recipe with a seed."""

    recipe: str
    """Its name or file."""
    seed: int
    epochs: int
    budget: float = 1.0
    m: int | None = None
    """Where it is not the recipe's own."""
    restarts: int = 0
    """Stages after the first, each of as many epochs at most."""

    @property
    def name(self) -> str:
        """As its result and its folder are called."""
        return f"{run_name(self.recipe)}/{file_name(self.seed, m=self.m, budget=self.budget)}"

    @property
    def arguments(self) -> list[str]:
        """For `maxup train`."""
        return [self.recipe, *self.overrides, *(["--certify"] if self.certifies else [])]

    @property
    def overrides(self) -> list[str]:
        """What it changes in the recipe."""
        copies = [] if self.m is None else ["--objective.m", str(self.m)]
        return ["--seed", str(self.seed), "--epochs", str(self.epochs), *copies]

    @property
    def certifies(self) -> bool:
        """Whether its result has certificates: it is trained with noise on pixels."""
        return noise_of(self.resolved()) is not None

    def resolved(self) -> Recipe:
        """The recipe as it is trained."""
        return parse_recipe(self.recipe, self.overrides)


def jobs_of(table: Table, seeds: int, budget: float = 1.0) -> tuple[list[Job], list[str]]:
    """The jobs of a table, all recipes with the first seed first; and the recipes that are not there yet.

    Example:
        >>> from maxup.lab.report.custom_tables import table_of
        >>> jobs, missing = jobs_of(table_of([("digits/mlp-gaussian", None), ("a/b", None)], ""), 2, 0.5)
        >>> [job.name for job in jobs], missing
        (['digits/mlp-gaussian/seed-0-budget-0.5', 'digits/mlp-gaussian/seed-1-budget-0.5'], ['a/b'])
    """
    known, found, missing = list_recipes(), [], []
    wanted = [(name, row) for row in table.rows.values() if row.recipe for name in (row.recipe, *row.grid)]
    for name, row in wanted:
        if name not in known and not name.endswith((".yaml", ".yml")):
            missing.append(name)
            continue
        recipe = parse_recipe(name, [])
        epochs = scaled(recipe.epochs, budget)
        ms: list[int | None] = [*row.copies] or [row.m]
        for m in ms:
            other = "m" in recipe.objective and m not in (None, copies_of(recipe))
            part = 1.0 if epochs == recipe.epochs else budget
            found.append((name, epochs, part, m if other else None, recipe.optim.restarts))
    chosen, seeds_in_turn = dict.fromkeys(found), range(seeds)  # two rows may share a recipe
    jobs = [Job(recipe, seed, epochs, b, m, r) for seed in seeds_in_turn for recipe, epochs, b, m, r in chosen]
    return jobs, list(dict.fromkeys(missing))


def state(job: Job, results: Path) -> str:
    """What is known of a job's result: "to do", "done", or why a file that stands there is not it."""
    path = results / f"{job.name}.json"
    if not path.exists():
        return "to do"
    try:
        changed = difference(read_run(path)["recipe"], job.resolved())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"{path} cannot be used ({error_message(error)}): remove it to train again"
    if changed:
        return f"{path} is of another version of the recipe (different: {', '.join(changed)}): remove it to train again"
    return "done"


def keep(job: Job, folder: Path, results: Path) -> bool:
    """Make a finished run's run.json the job's result, whole or not at all; whether the job is done."""
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
    atomic_io.sweep(path.parent, glob.escape(path.name))
    atomic_io.replace(path, atomic_io.read(folder / "run.json"))
    return True


def describe(jobs: Sequence[Job], states: Sequence[str], missing: Sequence[str]) -> list[str]:
    """A line for every job, and for every recipe that is not there yet."""
    width = max((len(job.name) for job in jobs), default=0)
    lines = []
    for job, s in zip(jobs, states, strict=True):
        most = f", up to {job.epochs * (1 + job.restarts)} with restarts" if job.restarts else ""
        lines.append(f"{job.name:<{width}}  {job.epochs:>4} epochs{most}  {s}")
    return lines + [f"{recipe}: no recipe yet" for recipe in missing]

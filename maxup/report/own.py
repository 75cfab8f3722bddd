"""Tables of recipes: a paper's table by its name, or a list of recipes from a file or from what was run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maxup.recipes.load import RecipeError, parse_recipe
from maxup.registry import nearest
from maxup.report.paper import Metric, Row, Table, load_paper, table_names
from maxup.report.results import Result, known_recipe, short_name


class TableError(ValueError):
    """A table that cannot be used, in one sentence."""


def find_table(name: str) -> Table:
    """A table of the paper, or that of a YAML file with a list `recipes`.

    Files of recipes in that list are looked for beside the table's file.

    Example:
        >>> find_table("table-cifar10").number
        3
    """
    if name.endswith((".yaml", ".yml")):
        return _read_list(Path(name))
    paper = load_paper()
    if name not in paper:
        raise TableError(nearest(name, table_names(), "table") + ", or a YAML file with a list of recipes")
    return paper[name]


def table_of(recipes: Iterable[tuple[str, int | None]], caption: str) -> Table:
    """A table without the paper's numbers; a row is a recipe with an m, its own if None.

    Example:
        >>> table = table_of([("digits/mlp-gaussian", None), ("digits/mlp-gaussian-maxup", None)], "Ours")
        >>> table.rows["digits/mlp-gaussian-maxup"].baseline
        'digits/mlp-gaussian'
    """
    chosen = list(recipes)
    twins = {short_name(recipe) for recipe, m in chosen if m is None}
    rows = {}
    for recipe, m in chosen:
        name = short_name(recipe)
        folder, _, rest = name.rpartition("/")
        model, _, method = rest.partition("-")
        twin = name.removesuffix("-maxup")
        baseline = twin if name != twin and twin in twins else None
        place = f"{folder}/{model}" if folder else model
        rows[name if m is None else f"{name}, m = {m}"] = Row(
            place, method or name, {}, recipe=recipe, m=m or _copies(recipe), maxup=name != twin, baseline=baseline
        )
    metrics = {"top1": Metric("Test accuracy")}
    return Table(0, "", caption, "", "%", "higher", 2, "method", "metric", metrics, rows)


def other_results(results: Iterable[Result], tables: Iterable[Table]) -> Table | None:
    """A table of the results with recipes that none of these tables has, or None."""
    in_tables = {short_name(row.recipe) for table in tables for row in table.rows.values() if row.recipe}
    others = sorted({(r.recipe, 0 if r.own_m else r.m) for r in results if r.recipe not in in_tables})
    if not others:
        return None
    return table_of([(recipe, m or None) for recipe, m in others], "Recipes of our own, not in the paper")


def _copies(recipe: str) -> int | None:
    known = known_recipe(recipe)
    if known is None:
        return None
    return 1 if known.objective == "standard" else known.maxup.m


def _read_list(path: Path) -> Table:
    import yaml

    try:
        said: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise TableError(f"{path} cannot be read as YAML: {' '.join(str(error).split())[:200]}") from None
    recipes = said.get("recipes") if isinstance(said, dict) and set(said) == {"recipes"} else None
    if not isinstance(recipes, list) or not recipes or not all(isinstance(recipe, str) for recipe in recipes):
        raise TableError(
            f"{path} must hold a list of recipes and nothing else, such as  recipes: [digits/mlp-gaussian]"
        )
    names = [short_name(recipe) for recipe in recipes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TableError(f"{path} has {min(twice)} more than once; results go by that name")
    found = [str(path.parent / recipe) if recipe.endswith((".yaml", ".yml")) else recipe for recipe in recipes]
    for recipe in found:
        try:
            parse_recipe(recipe, [])
        except RecipeError as error:
            raise TableError(f"{path}: {error}") from None
    return table_of([(recipe, None) for recipe in found], f"The recipes of {path.name}")

"""Tables of recipes: a paper's table by its name, or a list of recipes from a file or from what was run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from maxup.errors import RecipeError, TableError, error_message
from maxup.lab.limits import COPIES
from maxup.lab.recipes.load import check_document, parse_recipe, parse_yaml, run_name
from maxup.lab.recipes.schema import copies_of
from maxup.lab.report.tables import belongs
from maxup.lab.results.files import Result, known_recipe
from maxup.lab.results.paper import Metric, Row, Table, load_paper, table_names
from maxup.lab.storage.atomic_io import read_text


def find_table(name: str) -> Table:
    """A table of the paper, or that of a YAML file with a list `recipes`: names, or {recipe: name, m: 10}.

    Files of recipes in that list are looked for beside the table's file.

    Example:
        >>> find_table("table-cifar10").number
        3
    """
    if name.endswith((".yaml", ".yml")):
        return _read_list(Path(name))
    paper = load_paper()
    if name not in paper:
        known = ", ".join(table_names())
        raise TableError(f"there is no table {name!r}; name one of {known}, or a YAML file with a list of recipes")
    return paper[name]


def table_of(recipes: Iterable[tuple[str, int | None]], caption: str) -> Table:
    """A table without the paper's numbers; a row is a recipe with an m, its own if None.

    Example:
        >>> table = table_of([("digits/mlp-gaussian", None), ("digits/mlp-gaussian-maxup", None)], "Ours")
        >>> table.rows["digits/mlp-gaussian-maxup"].baseline
        'digits/mlp-gaussian'
    """
    chosen = list(recipes)
    twins = {run_name(recipe) for recipe, m in chosen if m is None}
    rows = {}
    for recipe, m in chosen:
        name = run_name(recipe)
        folder, _, rest = name.rpartition("/")
        model, _, method = rest.partition("-")
        twin = name.removesuffix("-maxup")
        baseline = twin if name != twin and twin in twins else None
        place = f"{folder}/{model}" if folder else model
        rows[name if m is None else f"{name}, m = {m}"] = Row(
            place, method or name, {}, recipe=recipe, m=m or _copies(recipe), maxup=name != twin, baseline=baseline
        )
    if chosen and all(_of_text(recipe) for recipe, _ in chosen):
        metrics = {"valid": Metric("Valid"), "test": Metric("Test")}
        return Table(0, "", caption, "", "perplexity", "lower", 2, "method", "metric", metrics, rows)
    metrics = {"top1": Metric("Test accuracy")}
    return Table(0, "", caption, "", "%", "higher", 2, "method", "metric", metrics, rows)


def with_other_m(table: Table, results: Iterable[Result]) -> Table:
    """An ablation with a row for every m that its recipes were run with; any other table as it is.

    Example:
        >>> from maxup.lab.results.paper import load_paper
        >>> run = Result("cifar100/resnet110-cutout-maxup", 0, 2, False, 1.0, {}, 1.0, {})
        >>> [row.m for row in with_other_m(load_paper()["table-ablation"], [run]).rows.values()][:5]
        [1, 2, 4, 10, 20]
    """
    if table.down != "m":
        return table
    copies: dict[str, set[int]] = {}
    for result in results:
        copies.setdefault(result.recipe, set()).add(result.m)
    rows = dict(table.rows)
    for key, row in table.rows.items():
        there = {other.m for other in rows.values() if other.recipe == row.recipe}
        for m in copies.get(run_name(row.recipe or ""), set()) - there if row.maxup else ():
            rows[f"{key.rpartition('-')[0]}-m{m}"] = replace(row, m=m, values={}, ours=True)
    models = list(dict.fromkeys(row.model for row in rows.values()))
    order = sorted(rows, key=lambda key: (models.index(rows[key].model), rows[key].m or 0))
    return replace(table, rows={key: rows[key] for key in order})


def other_results(results: Iterable[Result], tables: Iterable[Table], *, text: bool = False) -> Table | None:
    """A table of the results on images, or on text, that no row of these tables is for; None where there are none."""
    rows = [row for table in tables for row in table.rows.values()]
    mine = [result for result in results if ("test_perplexity" in result.last) == text]
    others = [result for result in mine if not any(belongs(result, row) for row in rows)]
    if not others:
        return None
    chosen = sorted({(r.recipe, 0 if r.default_m else r.m) for r in others})
    table = table_of([(recipe, m or None) for recipe, m in chosen], "Recipes of our own, not in the paper")
    for key, row in table.rows.items():
        copies = {r.m for r in others if belongs(r, row)}
        if row.m is None and len(copies) == 1:  # a recipe that is not here: its runs know
            table.rows[key] = replace(row, m=copies.pop())
    return table


def _of_text(recipe: str) -> bool:
    known = known_recipe(recipe)
    return known is not None and known.task == "language"


def _copies(recipe: str) -> int | None:
    known = known_recipe(recipe)
    if known is None:
        return None
    return copies_of(known)


def _read_list(path: Path) -> Table:
    try:
        said: Any = parse_yaml(read_text(path))
        check_document(said)
    except RecipeError as error:
        raise TableError(f"{path}: {error}") from None
    except Exception as error:  # of many kinds: "!!bool 3" is a KeyError
        raise TableError(f"{path} cannot be read as YAML: {error_message(error)}") from None
    rows = said.get("recipes") if isinstance(said, dict) and set(said) == {"recipes"} else None
    wanted = "such as  recipes: [digits/mlp-gaussian, {recipe: digits/mlp-gaussian-maxup, m: 10}]"
    if not isinstance(rows, list) or not rows:
        raise TableError(f"{path} must hold a list of recipes and nothing else, {wanted}")
    if wrong := [row for row in rows if not _is_row(row)]:
        raise TableError(f"{path} has {str(wrong[0])[:60]}, which is not a recipe with an m that is {COPIES}; {wanted}")
    chosen = []
    for recipe, m in ((row, None) if isinstance(row, str) else (row["recipe"], row["m"]) for row in rows):
        place = str(path.parent / recipe) if recipe.endswith((".yaml", ".yml")) else recipe
        try:
            known = parse_recipe(place, [])
            if m == 1 and "m" in known.objective:
                place = _twin(place)  # m = 1 is the twin
                known = parse_recipe(place, [])
        except RecipeError as error:
            raise TableError(f"{path}: {error}") from None
        own = copies_of(known)
        if m not in (None, own) and "m" not in known.objective:
            raise TableError(f"{path}: {recipe} draws one copy of every example; m is for a recipe with MaxUp")
        chosen.append((place, None if m == own else m))
    names = [(run_name(recipe), m) for recipe, m in chosen]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TableError(f"{path} has {twice[0][0]} more than once with one m; results go by that name")
    return table_of(chosen, f"The recipes of {path.name}")


def _twin(recipe: str) -> str:
    """The recipe without MaxUp, which has the same name without -maxup."""
    stem, dot, ending = recipe.rpartition(".") if recipe.endswith((".yaml", ".yml")) else (recipe, "", "")
    if not stem.endswith("-maxup"):
        raise RecipeError(f"{recipe} with m = 1 is its twin, whose name is the same without -maxup; name that instead")
    return stem.removesuffix("-maxup") + dot + ending


def _is_row(row: Any) -> bool:
    match row:
        case str():
            return True
        case {"recipe": str(), "m": int(m), **rest}:
            return not rest and m in COPIES
    return False

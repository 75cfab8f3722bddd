"""Tables of recipes: a table of the paper, a list of recipes in a file, or a table made from results."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from maxup.errors import RecipeError
from maxup.lab.limits import COPIES
from maxup.lab.recipes.document import read_yaml
from maxup.lab.recipes.load import parse_recipe, run_name
from maxup.lab.recipes.schema import num_copies
from maxup.lab.results.files import Result, known_recipe
from maxup.lab.results.paper import Metric, Row, Table, load_paper, table_names
from maxup.lab.results.tables import belongs


def find_table(name: str) -> Table:
    """Return a table of the paper, or the table of a YAML file.

    The file has a list `recipes` of names or of entries such as {recipe: name, m: 10}. Paths of recipe files are
    relative to the file.
    """
    if name.endswith((".yaml", ".yml")):
        return _read_list(Path(name))
    paper = load_paper()
    if name not in paper:
        known = ", ".join(table_names())
        raise RecipeError(f"unknown table {name!r}; choose one of {known}, or give a YAML file with a list of recipes")
    return paper[name]


def make_table(recipes: Iterable[tuple[str, int | None]], caption: str, *, text: bool | None = None) -> Table:
    """Build a table without numbers of the paper. A row is a recipe and an m; None is the recipe's m.

    `text` says whether its metrics are perplexities. None: if all recipes are for text.

    Example:
        >>> table = make_table([("digits/mlp-gaussian", None), ("digits/mlp-gaussian-maxup", None)], "Ours")
        >>> table.rows["digits/mlp-gaussian-maxup"].baseline
        'digits/mlp-gaussian'
    """
    entries = list(recipes)
    names = {run_name(recipe) for recipe, m in entries if m is None}
    rows = {}
    for recipe, m in entries:
        name = run_name(recipe)
        plain, space, variant = name.partition(" (")  # see `Result.variant`
        folder, _, rest = plain.rpartition("/")
        model, _, method = rest.partition("-")
        base, maxup = plain.removesuffix("-maxup") + space + variant, plain.endswith("-maxup")
        rows[name if m is None else f"{name}, m = {m}"] = Row(
            f"{folder}/{model}" if folder else model, (method or plain) + space + variant, {}, recipe=recipe,
            m=m or _copies(recipe), maxup=maxup, baseline=base if maxup and base in names else None,
        )  # fmt: skip
    if text is None:
        text = bool(entries) and all(_is_text(recipe) for recipe, _ in entries)
    if text:
        metrics = {"valid": Metric("Valid"), "test": Metric("Test")}
        return Table(caption, "perplexity", "lower", metrics, rows)
    metrics = {"top1": Metric("Test accuracy")}
    return Table(caption, "%", "higher", metrics, rows)


def with_other_m(table: Table, results: Iterable[Result]) -> Table:
    """Add a row to an ablation for every m that its recipes were run with. Other tables are unchanged."""
    if table.down != "m":
        return table
    copies: dict[str, set[int]] = {}
    for result in results:
        copies.setdefault(result.recipe, set()).add(result.m)
    rows = dict(table.rows)
    for key, row in table.rows.items():
        existing = {other.m for other in rows.values() if other.recipe == row.recipe}
        for m in copies.get(run_name(row.recipe or ""), set()) - existing if row.maxup else ():
            rows[f"{key.rpartition('-')[0]}-m{m}"] = replace(row, m=m, values={}, ours=True)
    models = list(dict.fromkeys(row.model for row in rows.values()))
    order = sorted(rows, key=lambda key: (models.index(rows[key].model), rows[key].m or 0))
    return replace(table, rows={key: rows[key] for key in order})


def other_results(results: Iterable[Result], tables: Iterable[Table], *, text: bool = False) -> Table | None:
    """Build a table of the results on images, or on text, that belong to none of these tables. None if empty."""
    rows = [row for table in tables for row in table.rows.values()]
    others = [
        result
        for result in results
        if ("test_perplexity" in result.last) == text and not any(belongs(result, row) for row in rows)
    ]
    if not others:
        return None
    entries = sorted({(r.recipe, 0 if r.default_m else r.m) for r in others})
    caption = "Your runs, and recipes that are not in the paper"
    table = make_table([(recipe, m or None) for recipe, m in entries], caption, text=text)
    for key, row in table.rows.items():
        copies = {r.m for r in others if belongs(r, row)}
        if row.m is None and len(copies) == 1:  # an unknown recipe: take m from its runs
            table.rows[key] = replace(row, m=copies.pop())
    return table


def _is_text(recipe: str) -> bool:
    known = known_recipe(recipe)
    return known is not None and known.task == "language"


def _copies(recipe: str) -> int | None:
    known = known_recipe(recipe)
    return None if known is None else num_copies(known)


def _read_list(path: Path) -> Table:
    content = read_yaml(path)
    rows = content.get("recipes") if set(content) == {"recipes"} else None
    example = "for example  recipes: [digits/mlp-gaussian, {recipe: digits/mlp-gaussian-maxup, m: 10}]"
    if not isinstance(rows, list) or not rows:
        raise RecipeError(f"{path} must have a list of recipes and nothing else, {example}")
    if invalid := [row for row in rows if not _is_row(row)]:
        raise RecipeError(
            f"{path}: {str(invalid[0])[:60]} is not a recipe name or a recipe with an m that is {COPIES}; {example}"
        )
    entries = []
    for recipe, m in ((row, None) if isinstance(row, str) else (row["recipe"], row["m"]) for row in rows):
        place = str(path.parent / recipe) if recipe.endswith((".yaml", ".yml")) else recipe
        try:
            known = parse_recipe(place, [])
            if m == 1 and "m" in known.objective:
                place = _baseline(place)
                known = parse_recipe(place, [])
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from None
        default = num_copies(known)
        if m not in (None, default) and "m" not in known.objective:
            raise RecipeError(f"{path}: {recipe} draws one copy per example; give m only for a recipe with MaxUp")
        entries.append((place, None if m == default else m))
    names = [(run_name(recipe), m) for recipe, m in entries]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise RecipeError(f"{path} has {duplicates[0][0]} twice with the same m; remove one, or rename the recipe file")
    return make_table(entries, f"The recipes of {path.name}")


def _baseline(recipe: str) -> str:
    """Return the name of the recipe with m = 1: the same name without -maxup."""
    stem, dot, suffix = recipe.rpartition(".") if recipe.endswith((".yaml", ".yml")) else (recipe, "", "")
    if not stem.endswith("-maxup"):
        raise RecipeError(
            f"{recipe} has no baseline: m = 1 needs a recipe name that ends in -maxup; list the baseline recipe instead"
        )
    return stem.removesuffix("-maxup") + dot + suffix


def _is_row(row: Any) -> bool:
    match row:
        case str():
            return True
        case {"recipe": str(), "m": int(m), **rest}:
            return not rest and m in COPIES
    return False

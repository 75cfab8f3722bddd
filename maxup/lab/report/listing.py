"""The list of your runs and of recipes: a description, the paper's number, our number and the cost of each."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from maxup.lab.output import make_console, say
from maxup.lab.recipes.load import find_recipe, list_recipes, read_recipe
from maxup.lab.recipes.resolve import resolve_objective
from maxup.lab.report.figure import main_metric
from maxup.lab.report.tables import DASH, format_estimate, format_seconds
from maxup.lab.report.your_runs import COLUMNS as YOUR_COLUMNS
from maxup.lab.report.your_runs import YourRun, your_runs
from maxup.lab.results.files import Result, budget_name, load_results, mean_seconds
from maxup.lab.results.paper import Row, Table, load_paper
from maxup.lab.results.statistics import estimate
from maxup.lab.results.tables import measured

COLUMNS = ("recipe", "what", "paper", "result (n seeds)", "time or m")
WIDE = 110  # terminal width that fits every column


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    recipe: str
    what: str
    """The first sentence of the recipe file."""
    paper: str
    ours: str
    """Our numbers for every budget, the largest first."""
    cost: str
    """Training time per budget if measured, otherwise m."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The same as numbers, for --json. Accuracies are in %."""


@dataclass(frozen=True)
class Listing:
    """What `maxup ls` shows."""

    runs: list[YourRun]
    recipes: list[Entry]
    notes: list[str]
    """A message for each result file that is skipped."""


def listing(word: str, *, results: Path, runs: Path) -> Listing:
    """Return your runs and the recipes whose name contains a word."""
    found, notes = load_results(results, runs)
    tables = load_paper().values()
    entries = []
    for name in (name for name in list_recipes() if word in name):
        what, copies = _what(name), _copies(name)
        paper, table, row = _paper(name, copies, tables)
        number, cost, ours = _ours([r for r in found if r.recipe == name and r.default_m], table, row)
        value = row.values[main_metric(table)] if table and row else None
        numbers = {"paper": value and {"mean": value.mean, "std": value.std}, "ours": ours}
        entries.append(Entry(name, what, paper, number, cost or copies, numbers))
    return Listing(your_runs(found, runs, word), entries, notes)


def document(listing: Listing) -> dict[str, Any]:
    """Return a list as plain data, with numbers, for --json."""
    runs = [{"run": one.run, "what": one.what, **one.numbers} for one in listing.runs]
    recipes = [{"recipe": one.recipe, "what": one.what, **one.numbers} for one in listing.recipes]
    return {"runs": runs, "recipes": recipes, "notes": listing.notes}


def show(listing: Listing) -> None:
    """Print your runs and the recipes."""
    _show(YOUR_COLUMNS, listing.runs)
    _show(COLUMNS, listing.recipes)


def _show(columns: Sequence[str], entries: Sequence[YourRun | Entry]) -> None:
    """Print a table on a terminal, or one line per entry if the output is not a terminal.

    A narrow terminal has name and description in one column. The first line has the names of the columns.
    """
    from rich.table import Table as Rich
    from rich.text import Text

    console = make_console()
    rows = [astuple(entry)[: len(columns)] for entry in entries]
    if not console.is_terminal:
        lines = [tuple(columns), *rows] if rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for row in lines:
            say("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
        return
    narrow = console.width < WIDE
    longest = max((len(name) for name, *_ in rows), default=0)
    costs = [len(f"{cost},") for entry in entries for cost in entry.cost.split(", ")]
    table = Rich(box=None, pad_edge=False, header_style="bold")
    name, what, *others, last = columns
    table.add_column(name, overflow="fold", width=min(longest, console.width // 2))
    if not narrow:
        table.add_column(what)
    for other in others:
        table.add_column(other)
    table.add_column(last, width=max(costs, default=4))
    for name, what, *rest in rows:
        if narrow:
            table.add_row(Text.assemble(name, "\n", (what, "dim")), *rest)
        else:
            table.add_row(name, what, *rest)
    if rows:
        console.print(table)


def _what(name: str) -> str:
    """Return the first sentence of the comment at the top of a recipe file. Indented lines are commands."""
    lines = takewhile(lambda line: line.startswith("# "), find_recipe(name).read_text(encoding="utf-8").splitlines())
    text = " ".join(line[2:] for line in lines if not line.startswith("#  "))
    return text.partition(". ")[0].removesuffix(".")


def _copies(name: str) -> str:
    """Return the m of a recipe, or the name of its objective if it has no m."""
    objective = resolve_objective(read_recipe(name).get("objective", "standard"))
    if objective["name"] == "standard" or "m" in objective:
        return f"m = {objective.get('m', 1)}"
    return str(objective["name"]).replace("_", " ")


def _paper(name: str, copies: str, tables: Iterable[Table]) -> tuple[str, Table | None, Row | None]:
    """Return the paper's number for a recipe, and its table and row."""
    for table in tables:
        for row in table.rows.values():
            if row.recipe == name and (not row.maxup or row.m is None or copies == f"m = {row.m}"):
                metric = main_metric(table)
                if value := row.values.get(metric):
                    std = "" if value.std is None else f" ± {value.std:.{table.digits}f}"
                    return f"{value.mean:.{table.digits}f}{std} {_unit(table, metric)}", table, row
    return DASH, None, None


def _unit(table: Table | None, metric: str) -> str:
    unit = table.unit if table else "%" if metric == "top1" else "perplexity"
    return f"{unit} at {metric}" if metric[0].isdigit() else unit


def _ours(results: Sequence[Result], table: Table | None, row: Row | None) -> tuple[str, str, list[dict[str, Any]]]:
    """Return our numbers and mean training times for every budget, so that MaxUp and baseline can be compared.

    As text, and as a list of numbers.
    """
    row = row or Row("", "", {})
    text = any("test_perplexity" in result.last for result in results)
    metric = main_metric(table) if table else "test" if text else "top1"
    numbers, costs, plain = [], [], []
    for budget in sorted({r.budget for r in results}, reverse=True):
        mine = [r for r in results if r.budget == budget]
        values = [value for r in mine if (value := measured(r, row, metric)) is not None]
        if ours := estimate(values):
            part = "" if budget == 1 else f", {budget_name(budget, [mine[0].recipe])}"
            numbers.append(format_estimate(ours, 2, _unit(table, metric), part))
            seconds = mean_seconds(mine)
            costs.append(format_seconds(seconds))
            plain.append({"budget": budget, "metric": metric, **asdict(ours), "seconds": seconds})
    return ", ".join(numbers) or DASH, ", ".join(costs) if set(costs) - {DASH} else "", plain

"""The recipes in a list: what each is, the paper's number, ours, and what it costs."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import takewhile
from pathlib import Path

from maxup.lab.output import make_console, say
from maxup.lab.recipes.load import find_recipe, list_recipes, read_recipe
from maxup.lab.recipes.objectives import resolve_objective
from maxup.lab.report.figure import main_metric
from maxup.lab.report.tables import DASH, measured, ours
from maxup.lab.results.files import Result, budget_name, load_results, mean_seconds
from maxup.lab.results.paper import Row, Table, load_paper
from maxup.lab.results.statistics import estimate

COLUMNS = ("recipe", "what", "paper", "ours (n seeds)", "cost")
WIDE = 110  # characters of a terminal that has room for every column


@dataclass(frozen=True)
class Entry:
    """A recipe's line."""

    recipe: str
    what: str
    """The first sentence of its file."""
    paper: str
    ours: str
    """Of every budget that was run, the largest first."""
    cost: str
    """Seconds of training of each where measured, else the copies of every example."""


def listing(word: str, *, results: Path, runs: Path) -> tuple[list[Entry], list[str]]:
    """The recipes whose name holds a word, and a sentence for each result file that is left out.

    Example:
        >>> entries, _ = listing("mlp-gaussian-maxup", results=Path("nowhere"), runs=Path("nowhere"))
        >>> entries[0].recipe, entries[0].cost
        ('digits/mlp-gaussian-maxup', 'm = 4')
    """
    found, notes = load_results(results, runs)
    tables = load_paper().values()
    entries = []
    for name in (name for name in list_recipes() if word in name):
        what, copies = _what(name), _copies(name)
        paper, table, row = _paper(name, copies, tables)
        number, cost = _ours([r for r in found if r.recipe == name and r.default_m], table, row)
        entries.append(Entry(name, what, paper, number, cost or copies))
    return entries, notes


def show(entries: Sequence[Entry]) -> None:
    """Print them: a table on a terminal, on a narrow one with two columns in one; a line for each elsewhere.

    Either begins with a line that names the columns.
    """
    from rich.table import Table as Rich
    from rich.text import Text

    console = make_console()
    rows = [astuple(entry) for entry in entries]
    if not console.is_terminal:
        lines = [COLUMNS, *rows] if rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for row in lines:
            say("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
        return
    narrow = console.width < WIDE
    longest = max((len(entry.recipe) for entry in entries), default=0)
    costs = [len(f"{cost},") for entry in entries for cost in entry.cost.split(", ")]
    table = Rich(box=None, pad_edge=False, header_style="bold")
    recipe, what, *others, last = COLUMNS
    table.add_column(recipe, overflow="fold", width=min(longest, console.width // 2))
    if not narrow:
        table.add_column(what)
    for name in others:
        table.add_column(name)
    table.add_column(last, width=max(costs, default=4))
    for recipe, what, *rest in rows:
        if narrow:
            table.add_row(Text.assemble(recipe, "\n", (what, "dim")), *rest)
        else:
            table.add_row(recipe, what, *rest)
    if rows:
        console.print(table)


def _what(name: str) -> str:
    """The first sentence of a recipe's comment, which may go on in a second line; a command is indented."""
    lines = takewhile(lambda line: line.startswith("# "), find_recipe(name).read_text(encoding="utf-8").splitlines())
    text = " ".join(line[2:] for line in lines if not line.startswith("#  "))
    return text.partition(". ")[0].removesuffix(".")


def _copies(name: str) -> str:
    """m of a recipe, or what it does instead of drawing copies."""
    said = read_recipe(name)
    objective = resolve_objective(said.get("objective", "standard"))
    if objective["name"] == "standard" or "m" in objective:
        return f"m = {objective.get('m', 1)}"
    return str(objective["name"]).replace("_", " ")


def _paper(name: str, copies: str, tables: Iterable[Table]) -> tuple[str, Table | None, Row | None]:
    """The paper's number for a recipe as it is, and the row that has it."""
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


def _ours(results: Sequence[Result], table: Table | None, row: Row | None) -> tuple[str, str]:
    """Our numbers and their mean seconds, of every budget that was run: twins may have others in common."""
    row = row or Row("", "", {})
    text = any("test_perplexity" in result.last for result in results)
    metric = main_metric(table) if table else "test" if text else "top1"
    numbers, costs = [], []
    for budget in sorted({r.budget for r in results}, reverse=True):
        mine = [r for r in results if r.budget == budget]
        values = [value for r in mine if (value := measured(r, row, metric)) is not None]
        if found := estimate(values):
            number, _, n = ours(found, 2).removesuffix(")").partition(" (")
            part = "" if budget == 1 else f", {budget_name(budget, [mine[0].recipe])}"
            numbers.append(f"{number} {_unit(table, metric)} ({n}{part})")
            seconds = mean_seconds(mine)
            costs.append(DASH if seconds is None else f"{seconds:,.{1 if seconds < 10 else 0}f} s")
    return ", ".join(numbers) or DASH, ", ".join(costs) if set(costs) - {DASH} else ""

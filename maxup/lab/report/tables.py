"""Ours beside the paper's: what a table says, as data and as text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import compress

from maxup.lab.recipes.load import run_name
from maxup.lab.results.files import Result, budget_name, known_recipe, mean_seconds
from maxup.lab.results.paper import Metric, Row, Table, Value, load_slips
from maxup.lab.results.statistics import Difference, Estimate, difference, estimate

DASH = "–"  # noqa: RUF001
MINUS = "−"  # noqa: RUF001
LEGEND = (
    f"± is the standard deviation over the n seeds. Difference: MaxUp {MINUS} its twin without MaxUp; from 3 seeds on, "
    "ours has Welch's 95 % interval, or the paired one if the seed chooses the images (data.train_size); none if all "
    "seeds agree. Ours is measured after the last epoch, of runs with "
    "restarts at their best epoch by validation. 60 of 200 epochs, or a budget of 0.3, are runs with that part of the "
    "recipe's epochs."
)


@dataclass(frozen=True)
class Line:
    """One row of a table in one metric: the paper's number, and ours by budget."""

    key: str
    row: Row
    metric: str
    paper: Value | None
    paper_difference: float | None
    values: dict[float, dict[int, float]]
    """Ours, by budget and seed."""
    ours: dict[float, Estimate]
    differences: dict[float, Difference]
    seconds: dict[float, float]
    """Mean wall time of our runs."""
    models: dict[float, list[tuple[str, int]]]
    """Recipe and m of our runs; of several, the best in this metric is shown."""


@dataclass(frozen=True)
class Comparison:
    """A table of the paper with ours."""

    name: str
    table: Table
    lines: list[Line]
    budgets: list[float]
    """Those that some run has; 1 always, and first."""


@dataclass(frozen=True)
class Cell:
    """A text with the numbers of its notes."""

    text: str
    marks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text + "".join(f" [{mark}]" for mark in self.marks)


@dataclass
class Grid:
    """A table as text."""

    headings: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Those that a cell has the number of."""
    remarks: list[str] = field(default_factory=list)
    """On the whole table."""

    def note(self, text: str) -> int:
        """The number of a note, which may be there already."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1


def compare(name: str, table: Table, results: Iterable[Result]) -> Comparison:
    """The paper's numbers with ours beside them.

    Example:
        >>> from maxup.lab.results.paper import load_paper
        >>> line = compare("table-cifar10", load_paper()["table-cifar10"], []).lines[1]
        >>> line.paper.mean, round(line.paper_difference, 2), line.ours
        (95.41, 0.57, {})
    """
    found = list(results)
    mine = {key: [r for r in found if belongs(r, row)] for key, row in table.rows.items()}
    budgets = sorted({r.budget for rows in mine.values() for r in rows} - {1.0}, reverse=True)
    lines = []
    for key, row in table.rows.items():
        for metric in table.metrics:
            paper = row.values.get(metric)
            before = table.rows[row.baseline].values.get(metric) if row.baseline else None
            values = _by_seed(mine[key], row, metric)
            twin = _by_seed(mine[row.baseline], table.rows[row.baseline], metric) if row.baseline else {}
            lines.append(Line(
                key, row, metric, paper,
                paper.mean - before.mean if paper and before else None,
                values,
                {b: e for b, v in values.items() if (e := estimate(list(v.values())))},
                {b: d for b, v in values.items() if (d := _difference(row, v, twin.get(b, {})))},
                {b: s for b in values if (s := mean_seconds([r for r in mine[key] if r.budget == b])) is not None},
                {b: sorted({(r.recipe, r.m) for r in mine[key]
                            if r.budget == b and measured(r, row, metric) is not None}) for b in values},
            ))  # fmt: skip
    return Comparison(name, table, lines, [1.0, *budgets])


def grid(comparison: Comparison) -> Grid:
    """The text of every cell, with notes on what the paper has otherwise; columns without any are left out.

    Example:
        >>> from maxup.lab.results.paper import load_paper
        >>> [str(cell) for cell in grid(compare("table-cifar10", load_paper()["table-cifar10"], [])).rows[1][:5]]
        ['ResNet-110', 'MaxUp+Cutout', '4', '95.41 ± 0.08', '+0.57']
    """
    table, several = comparison.table, len(comparison.table.metrics) > 1
    sizes = any(row.params or row.flops for row in table.rows.values())
    paper = any(line.paper for line in comparison.lines)
    headings = ["model", *(["size"] if sizes else []), "method", "m", *(["metric"] if several else [])]
    headings += ["paper", "difference"] if paper else []
    for budget in comparison.budgets:
        headings += ["ours" if budget == 1 else called(budget, comparison.lines), "difference"]
    out = Grid(headings)
    for line in comparison.lines:
        row = line.row
        cells = [Cell(row.model)]
        if sizes:
            cells.append(_size(row, out))
        method = _method(row, out)
        chosen = [mark for budget in comparison.budgets for mark in _best_of(line, budget, comparison, out)]
        cells += [replace(method, marks=(*method.marks, *chosen)), Cell(_copies(row))]
        if several:
            cells.append(_metric(table.metrics[line.metric], out))
        if paper:
            cells += [_paper(line.paper, table.digits, out), Cell(signed(line.paper_difference, table.digits))]
        digits = max(table.digits, 2)
        for budget in comparison.budgets:
            found, other = line.ours.get(budget), line.differences.get(budget)
            cells += [Cell(ours(found, digits)), Cell(against(other, digits, found.n if found else 0))]
        out.rows.append(cells)
    for slip in load_slips():
        if comparison.name in slip.tables:
            printed = slip.printed.replace("$", "").replace("\\%", " %")
            out.remarks.append(f"The paper's text has {printed}; it should be {slip.corrected}: {slip.why}.")
    full = [any(row[i].text != DASH for row in out.rows) for i in range(len(headings))]
    return replace(out, headings=[*compress(headings, full)], rows=[[*compress(row, full)] for row in out.rows])


def called(budget: float, lines: Iterable[Line]) -> str:
    """What a budget is of those lines that have it, such as 60 of 200 epochs."""
    rows = [line.row for line in lines if budget in line.ours]
    return budget_name(budget, [name for row in rows for name in (row.recipe or "", *row.grid)])


def title(comparison: Comparison) -> str:
    """The table's name, number, metric and unit."""
    table = comparison.table
    what = next(iter(table.metrics.values())).title if len(table.metrics) == 1 else ""
    unit = " [%]" if table.unit == "%" else f" {table.unit} (lower is better)"
    number = f" (Table {table.number} of the paper)" if table.number else ""
    return f"{comparison.name}{number}: {table.caption}{'.' if what else ';'} {what}{unit}".replace(";  ", "; ")


def tied(text: str) -> str:
    r"""With spaces that no line breaks at, where a number would lose its sign or its name: ± 0.08 and n = 5.

    Example:
        >>> tied("95.41 ± 0.08 (n = 5)").split(" ")
        ['95.41', '±\xa00.08', '(n\xa0=\xa05)']
    """
    return re.sub(r"(?<=±) | (?==)|(?<==) ", "\xa0", text)


def measured(result: Result, row: Row, metric: str) -> float | None:
    """Our number for a metric of the paper: accuracies in %, perplexities as they are."""
    last = result.last
    match metric:
        case "top1" | "top5":
            found = last.get("test_accuracy" if metric == "top1" else "test_top5_accuracy")
            return None if found is None else 100 * found
        case "valid" | "test":
            split = "validation" if metric == "valid" else "test"
            return last.get(f"{split}_{'dynamic_' if row.dynamic else ''}perplexity")
        case radius:
            found = last.get(f"certified_accuracy_{radius}")
            return None if found is None or float(radius) > result.reach else 100 * found


def ours(found: Estimate | None, digits: int) -> str:
    """Such as 95.41 ± 0.08 (n = 5)."""
    if found is None:
        return DASH
    std = "" if found.std is None else f" ± {_number(found.std, digits)}"
    return f"{_number(found.mean, digits)}{std} (n = {found.n})"


def against(found: Difference | None, digits: int, n: int) -> str:
    """Such as +0.57 [+0.40, +0.74]; with the difference's own n if that is another or if there is no interval."""
    if found is None:
        return DASH
    interval = "" if found.low is None else f" [{signed(found.low, digits)}, {signed(found.high, digits)}]"
    count = f" (n = {found.n})" if not interval or found.n != n else ""
    return signed(found.mean, digits) + interval + count


def signed(number: float | None, digits: int) -> str:
    """With its sign, the minus a real one."""
    return DASH if number is None else _number(number, digits, "+").replace("-", MINUS)


def _number(number: float, digits: int, sign: str = "") -> str:
    """With so many decimals; a huge perplexity with three digits."""
    return f"{number:{sign}.{digits}f}" if abs(number) < 1e6 else f"{number:{sign}.3g}"


def belongs(result: Result, row: Row) -> bool:
    """Whether a result is one of a row's."""
    if row.recipe is None or result.recipe not in (run_name(row.recipe), *row.grid):
        return False
    if row.copies:
        return result.m in row.copies
    return result.default_m if row.m is None else result.m == row.m


def _by_seed(results: Iterable[Result], row: Row, metric: str) -> dict[float, dict[int, float]]:
    values: dict[float, dict[int, float]] = {}
    for result in results:
        if (value := measured(result, row, metric)) is not None:
            seeds = values.setdefault(result.budget, {})
            seeds[result.seed] = max(value, seeds.get(result.seed, value))  # of a grid, the best
    return values


def _difference(row: Row, ours: dict[int, float], baseline: dict[int, float]) -> Difference | None:
    """Paired only where a seed chooses the images that both runs of it share."""
    known = known_recipe(row.recipe) if row.recipe else None
    return difference(ours, baseline, paired=known is not None and known.data.train_size is not None)


def _best_of(line: Line, budget: float, comparison: Comparison, out: Grid) -> tuple[int, ...]:
    """The note that a number is chosen from several models, where it is."""
    models = line.models.get(budget, [])
    if len(models) < 2:
        return ()
    twin = next(
        (other for other in comparison.lines if (other.key, other.metric) == (line.row.baseline, line.metric)), None
    )
    its = len(twin.models.get(budget, [])) if twin else 0
    ms = ", ".join(str(m) for m in sorted({m for _, m in models}))
    beside = f"; its twin's is the best of {its}" if its else ""
    after = "" if budget == 1 else f" after {called(budget, [line])}"
    return (
        out.note(f"Ours{after} is the best of {len(models)} models, m in {ms}, chosen on the test images{beside}."),
    )


def _copies(row: Row) -> str:
    return str(row.m) if row.m is not None else DASH


def _method(row: Row, out: Grid) -> Cell:
    marks = []
    if row.why:
        marks.append(out.note(f"The paper calls this row {row.printed}; {row.why}."))
    if row.ours:
        marks.append(out.note("A row of our own, which the paper does not have."))
    if row.note:
        marks.append(out.note(f"{row.note[0].upper()}{row.note[1:]}."))
    return Cell(row.method + (", dynamic evaluation" if row.dynamic else ""), tuple(marks))


def _metric(metric: Metric, out: Grid) -> Cell:
    marks = (out.note(f"The paper's heading is {metric.printed}; {metric.why}."),) if metric.why else ()
    return Cell(metric.title, marks)


def _paper(value: Value | None, digits: int, out: Grid) -> Cell:
    if value is None:
        return Cell(DASH)
    marks = (
        (out.note(f"The paper prints {value.printed:.{digits}f}; {value.why}."),) if value.printed is not None else ()
    )
    return Cell(f"{value.mean:.{digits}f}" + (f" ± {value.std:.{digits}f}" if value.std is not None else ""), marks)


def _size(row: Row, out: Grid) -> Cell:
    texts, marks = [], []
    for value, unit in ((row.params, "parameters"), (row.flops, "FLOPs")):
        if value is not None:
            texts.append(f"{_count(value.mean)} {unit}")
            if value.printed is not None:
                marks.append(out.note(f"The paper prints {_count(value.printed)} {unit}; {value.why}."))
    return Cell(", ".join(texts) or DASH, tuple(marks))


def _count(number: float) -> str:
    """Such as 44.55M.

    Example:
        >>> _count(44.55e6), _count(481e6), _count(101.79e9)
        ('44.55M', '481M', '101.79G')
    """
    scale, letter = (1e9, "G") if number >= 1e9 else (1e6, "M")
    return f"{number / scale:.2f}".removesuffix(".00") + letter

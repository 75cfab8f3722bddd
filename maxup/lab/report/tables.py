"""A table with the paper's numbers and ours, as text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import compress

from maxup.lab.results.files import budget_name
from maxup.lab.results.paper import Metric, Row, Value, load_misprints
from maxup.lab.results.statistics import Difference, Estimate
from maxup.lab.results.tables import Comparison, Line

DASH = "–"  # noqa: RUF001
MINUS = "−"  # noqa: RUF001
NAMES = ("model", "size", "method", "m")  # columns that are shown once for all metrics of a row
LEGEND = (
    f"± is the standard deviation over n seeds. Difference: MaxUp {MINUS} its baseline without MaxUp. With 3 or more "
    "seeds, our difference has Welch's 95 % interval. The interval is paired if the seed selects the training images "
    "(data.train_size). No interval is shown if all seeds give the same value. Our numbers are from the last epoch; "
    "for runs with restarts, from the epoch with the best validation. A column such as 60 of 200 epochs or 30 % of "
    "the epochs has runs with that fraction of the recipe's epochs."
)


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the numbers of its notes."""

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
    """Notes that cells refer to by number."""
    remarks: list[str] = field(default_factory=list)
    """Remarks on the table."""

    def note(self, text: str) -> int:
        """Add a note unless it exists, and return its number."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1


def grid(comparison: Comparison) -> Grid:
    """Return the text of every cell, with notes on corrections of the paper. Empty columns are removed."""
    table, several = comparison.table, len(comparison.table.metrics) > 1
    sizes = any(row.params or row.flops for row in table.rows.values())
    paper = any(line.paper for line in comparison.lines)
    headings = ["model", *(["size"] if sizes else []), "method", "m", *(["metric"] if several else [])]
    headings += ["paper", "difference"] if paper else []
    for budget in comparison.budgets:
        headings += ["ours" if budget == 1 else budget_label(budget, comparison.lines), "difference"]
    out = Grid(headings)
    for line in comparison.lines:
        row = line.row
        cells = [Cell(row.model)]
        if sizes:
            cells.append(_size(row, out))
        method = _method(row, out)
        marks = [mark for budget in comparison.budgets for mark in _best_of(line, budget, comparison, out)]
        cells += [replace(method, marks=(*method.marks, *marks)), Cell(DASH if row.m is None else str(row.m))]
        if several:
            cells.append(_metric(table.metrics[line.metric], out))
        if paper:
            cells += [_paper(line.paper, table.digits, out), Cell(format_signed(line.paper_difference, table.digits))]
        digits = max(table.digits, 2)
        for budget in comparison.budgets:
            ours, difference = line.ours.get(budget), line.differences.get(budget)
            cells += [
                Cell(format_estimate(ours, digits)),
                Cell(format_difference(difference, digits, ours.n if ours else 0)),
            ]
        out.rows.append(cells)
    for misprint in load_misprints():
        if comparison.name in misprint.tables and table.number:  # the paper's
            printed = misprint.printed.replace("$", "").replace("\\%", " %")
            out.remarks.append(f"The paper's text has {printed}; it should be {misprint.corrected}: {misprint.why}.")
    full = [any(row[i].text != DASH for row in out.rows) for i in range(len(headings))]
    return replace(out, headings=[*compress(headings, full)], rows=[[*compress(row, full)] for row in out.rows])


def budget_label(budget: float, lines: Iterable[Line]) -> str:
    """Return the label of a budget for the lines that have it, such as "60 of 200 epochs"."""
    rows = [line.row for line in lines if budget in line.ours]
    return budget_name(budget, [name for row in rows for name in (row.recipe or "", *row.grid)])


def title(comparison: Comparison) -> str:
    """Return the name, number, caption, metric and unit of a table."""
    table = comparison.table
    metric = next(iter(table.metrics.values())).title if len(table.metrics) == 1 else ""
    unit = " [%]" if table.unit == "%" else f" {table.unit} (lower is better)"
    number = f" (Table {table.number} of the paper)" if table.number else ""
    return f"{comparison.name}{number}: {table.caption}{'.' if metric else ';'} {metric}{unit}".replace(";  ", "; ")


def nonbreaking(text: str) -> str:
    r"""Replace spaces at which a line must not break by non-breaking ones, as in ± 0.08 and n = 5.

    Example:
        >>> nonbreaking("95.41 ± 0.08 (n = 5)").split(" ")
        ['95.41', '±\xa00.08', '(n\xa0=\xa05)']
    """
    return re.sub(r"(?<=±) | (?==)|(?<==) ", "\xa0", text)


def format_estimate(estimate: Estimate | None, digits: int, unit: str = "", note: str = "") -> str:
    """Return text such as 95.41 ± 0.08 (n = 5). `unit` is added after the number, and `note` after n."""
    if estimate is None:
        return DASH
    std = "" if estimate.std is None else f" ± {_number(estimate.std, digits)}"
    return f"{_number(estimate.mean, digits)}{std}{unit and f' {unit}'} (n = {estimate.n}{note})"


def format_seconds(seconds: float | None) -> str:
    """Return text such as 2.5 s or 1,250 s.

    Example:
        >>> format_seconds(2.54), format_seconds(1250.3)
        ('2.5 s', '1,250 s')
    """
    return DASH if seconds is None else f"{seconds:,.{1 if seconds < 10 else 0}f} s"


def format_difference(difference: Difference | None, digits: int, n: int) -> str:
    """Return text such as +0.57 [+0.40, +0.74].

    The n of the difference is added if it is not the given `n`, or if there is no interval.
    """
    if difference is None:
        return DASH
    low, high = (format_signed(end, digits) for end in (difference.low, difference.high))
    interval = "" if difference.low is None else f" [{low}, {high}]"
    count = f" (n = {difference.n})" if not interval or difference.n != n else ""
    return format_signed(difference.mean, digits) + interval + count


def format_signed(number: float | None, digits: int) -> str:
    """Return a number with its sign, with a typographic minus."""
    return DASH if number is None else _number(number, digits, "+").replace("-", MINUS)


def _number(number: float, digits: int, sign: str = "") -> str:
    """Format a number with fixed decimals, or a huge one with three significant digits."""
    return f"{number:{sign}.{digits}f}" if abs(number) < 1e6 else f"{number:{sign}.3g}"


def _best_of(line: Line, budget: float, comparison: Comparison, out: Grid) -> tuple[int, ...]:
    """Return the note that our number is the best of several models, if it is."""
    models = line.models.get(budget, [])
    if len(models) < 2:
        return ()
    baseline = next(
        (other for other in comparison.lines if (other.key, other.metric) == (line.row.baseline, line.metric)), None
    )
    count = len(baseline.models.get(budget, [])) if baseline else 0
    ms = ", ".join(str(m) for m in sorted({m for _, m in models}))
    other = f"; the baseline is the best of {count}" if count else ""
    after = "" if budget == 1 else f" after {budget_label(budget, [line])}"
    text = f"Our number{after} is the best of {len(models)} models, m in {ms}, selected on the test images{other}."
    return (out.note(text),)


def _method(row: Row, out: Grid) -> Cell:
    marks = []
    if row.why:
        marks.append(out.note(f"The paper calls this row {row.printed}; {row.why}."))
    if row.ours:
        marks.append(out.note("We added this row; the paper does not have it."))
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
    """Format a count.

    Example:
        >>> _count(44.55e6), _count(481e6), _count(101.79e9)
        ('44.55M', '481M', '101.79G')
    """
    scale, letter = (1e9, "G") if number >= 1e9 else (1e6, "M")
    return f"{number / scale:.2f}".removesuffix(".00") + letter

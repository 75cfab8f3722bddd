"""The report as one self-contained HTML file, without scripts, for phones, desktops and print.

`page.html` is the template. It escapes all text.
"""

import base64
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader

from maxup.lab.output import one_line
from maxup.lab.report.figure import Plot, time_unit
from maxup.lab.report.tables import DASH, LEGEND, NAMES, Cell, grid, nonbreaking
from maxup.lab.results.files import Result
from maxup.lab.results.tables import Comparison

TEXT_COLUMNS = (*NAMES, "metric")  # the others hold numbers


def page(
    comparisons: Sequence[Comparison],
    plots: dict[str, list[Plot]],
    results: Sequence[Result],
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of the report.

    Args:
        comparisons: The tables, in order.
        plots: The plots of each table, by its name.
        results: Our results, for their number and their environments.
        notes: Messages about files and tables that were left out.
    """
    loader = PackageLoader("maxup.lab.report", "")
    environment = Environment(loader=loader, autoescape=True, finalize=_one_line, trim_blocks=True)
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    return environment.get_template("page.html").render(
        summary=_summary(comparisons, results),
        sections=[_section(comparison, plots.get(comparison.name, [])) for comparison in comparisons],
        environments=_environments(results),
        notes=notes,
        legend=LEGEND,
    )


def _one_line(value: Any) -> Any:
    """Put a text on one line, without control characters. HTML of the template itself stays as it is."""
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _summary(comparisons: Sequence[Comparison], results: Sequence[Result]) -> str:
    lines = [line for comparison in comparisons for line in comparison.lines]
    here = {line.key for line in lines if line.ours}
    if not here:
        shown = " The tables show the paper’s numbers." if comparisons else ""  # noqa: RUF001
        return f"There are no results yet.{shown}"
    time, runs = _time(results), "run" if len(results) == 1 else "runs"
    time = f", {time} of training in total" if time != DASH else ""
    return (
        f"{len(results)} finished {runs}{time}. All numbers are computed from result files, whether MaxUp is better or "
        "worse than its baseline."
    )


def _heading(comparison: Comparison) -> str:
    number = comparison.table.number
    return f"Table {number}: {comparison.name.removeprefix('table-')}" if number else comparison.name


def _section(comparison: Comparison, plots: Iterable[Plot]) -> dict[str, Any]:
    table, out = comparison.table, grid(comparison)
    several = len(table.metrics) > 1
    what = "" if several else next(iter(table.metrics.values())).title
    unit = "in %" if table.unit == "%" else f"{table.unit}, lower is better"
    runs = f" The paper averages {table.runs} runs." if table.runs else ""
    return {
        "name": comparison.name,
        "heading": _heading(comparison),
        "caption": f"{table.caption}. {f'{what}, {unit}' if what else unit.capitalize()}.{runs}",
        "notes": out.notes,
        "remarks": out.remarks,
        "plots": list(plots),
        **_table(out.headings, out.rows, [(line.key, line.row.maxup) for line in comparison.lines]),
    }


def _table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], keys: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """Return the headings and the bodies of a table. `keys` holds a key and whether it is a MaxUp row, per row.

    Consecutive rows with the same key form one body, which is one card on a phone.
    """
    bodies = []
    for (_, maxup), group in groupby(zip(rows, keys, strict=True), key=lambda pair: pair[1]):
        lines = [_row(headings, row, again=i > 0) for i, (row, _) in enumerate(group)]
        classes = ["maxup"] if maxup else []
        if len(lines) > 1:
            classes.append("several")
        bodies.append((" ".join(classes), lines))
    return {"headings": [(heading, _kind(heading)) for heading in headings], "bodies": bodies}


def _row(headings: Sequence[str], row: Sequence[Cell], *, again: bool) -> dict[str, Any]:
    """Return the cells of a row. A row of the same method as the row above, `again`, does not repeat its name."""
    cells = []
    bare = all(c.text == DASH for h, c in zip(headings, row, strict=True) if _kind(h) == "number")
    for heading, cell in zip(headings, row, strict=True):
        repeats = again and heading in NAMES
        empty = " empty" if repeats or cell.text == DASH or (bare and heading == "metric") else ""
        text, small = _split(heading, "" if repeats else nonbreaking(cell.text))
        marks = () if repeats else cell.marks
        cells.append({"heading": heading, "kind": _kind(heading) + empty, "text": text, "small": small, "marks": marks})
    return {"cells": cells, "empty": bare and again}


def _split(heading: str, text: str) -> tuple[str, str]:
    """Split a number from its n or its interval, which is in small text."""
    number, mark, rest = text.partition(" (n" if " (n" in text else " [")
    return (number, (mark + rest).strip()) if _kind(heading) == "number" and rest else (text, "")


def _kind(heading: str) -> str:
    return heading if heading in TEXT_COLUMNS else "number"


def _environments(results: Sequence[Result]) -> dict[str, Any] | None:
    """Return a table with one line per machine, versions and commit."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(_where(result.environment), []).append(result)
    headings = ["hardware", "threads", "torch", "python", "commit", "runs", "time"]
    rows = [[Cell(text) for text in (*where, str(len(group)), _time(group))] for where, group in sorted(groups.items())]
    return _table(headings, rows, [(str(i), False) for i in range(len(rows))]) if rows else None


def _time(group: Sequence[Result]) -> str:
    """Return the total training time of runs, or a dash if some shared their GPU."""
    timed = [result.seconds for result in group if result.seconds is not None]
    unit, name = time_unit(sum(timed))
    return f"{sum(timed) / unit:,.1f} {name}" if len(timed) == len(group) else DASH


def _where(environment: dict[str, Any]) -> tuple[str, ...]:
    versions = environment.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    commit = str(environment.get("commit") or DASH)
    dirty = " (dirty tree)" if commit.endswith("+") else ""
    texts = (environment.get("hardware"), environment.get("threads"), versions.get("torch"), versions.get("python"))
    return (*(DASH if text is None else str(text) for text in texts), commit[:7] + dirty)

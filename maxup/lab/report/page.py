"""The report as one self-contained HTML file, without scripts, for phones, desktops and print."""

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from maxup.lab.output import one_line
from maxup.lab.report.figure import Plot, time_unit
from maxup.lab.report.tables import DASH, LEGEND, Cell, grid, nonbreaking
from maxup.lab.results.files import Result
from maxup.lab.results.tables import Comparison

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def escape(text: str) -> str:
    """Escape a text for HTML, on one line and without control characters."""
    return html.escape(one_line(text))


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
    style = files("maxup.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = [_section(comparison, plots.get(comparison.name, [])) for comparison in comparisons]
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>MaxUp: our results and the paper’s</title>",  # noqa: RUF001
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        "<h1>MaxUp: our results and the paper’s</h1>",  # noqa: RUF001
        f"<p>{escape(_summary(comparisons, results))}</p>",
        _contents(comparisons),
        "</header>",
        "<main>",
        *sections,
        _environments(results),
        _notes(notes),
        "</main>",
        f"<footer><p>{escape(LEGEND)}</p><p>Made by <code>maxup report</code>.</p></footer>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


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


def _contents(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) < 2:
        return ""
    links = (f'<li><a href="#{escape(c.name)}">{escape(_heading(c))}</a></li>' for c in comparisons)
    return f'<nav aria-label="Tables"><ul>{"".join(links)}</ul></nav>'


def _heading(comparison: Comparison) -> str:
    number = comparison.table.number
    return f"Table {number}: {comparison.name.removeprefix('table-')}" if number else comparison.name


def _section(comparison: Comparison, plots: Iterable[Plot]) -> str:
    table, out = comparison.table, grid(comparison)
    several = len(table.metrics) > 1
    what = "" if several else next(iter(table.metrics.values())).title
    unit = "in %" if table.unit == "%" else f"{table.unit}, lower is better"
    runs = f" The paper averages {table.runs} runs." if table.runs else ""
    caption = f"{table.caption}. {f'{what}, {unit}' if what else unit.capitalize()}.{runs}"
    parts = [
        f'<section id="{escape(comparison.name)}">',
        '<div class="whole">',
        f"<h2>{escape(_heading(comparison))}</h2>",
        f'<p class="caption">{escape(caption)}</p>',
        _table(comparison.name, out.headings, out.rows, [(line.key, line.row.maxup) for line in comparison.lines]),
        "</div>",
    ]
    if out.notes:
        items = (f'<li id="{escape(comparison.name)}-{i}">{escape(note)}</li>' for i, note in enumerate(out.notes, 1))
        parts.append(f'<ol class="notes">{"".join(items)}</ol>')
    parts += [f'<p class="notes">{escape(remark)}</p>' for remark in out.remarks]
    figures = "\n".join(map(_plot, plots))
    parts += [f'<div class="figures">{figures}</div>'] * bool(figures)
    return "\n".join([*parts, "</section>"])


def _table(name: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]], keys: Sequence[tuple[str, bool]]) -> str:
    """Return a table. `keys` holds a key and whether it is a MaxUp row, per row.

    Consecutive rows with the same key form one tbody, which is one card on a phone.
    """
    head = "".join(f'<th scope="col"{_kind(h)}>{escape(h)}</th>' for h in headings)
    bodies = []
    for (_, maxup), group in groupby(zip(rows, keys, strict=True), key=lambda pair: pair[1]):
        lines = [_row(name, headings, row, again=i > 0) for i, (row, _) in enumerate(group)]
        kinds = " ".join(["maxup"] * maxup + ["several"] * (len(lines) > 1))
        bodies.append(f'<tbody class="{kinds}">\n' + "\n".join(lines) + "\n</tbody>")
    body = "\n".join(bodies)
    return f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n{body}\n</table></div>'


def _row(name: str, headings: Sequence[str], row: Sequence[Cell], *, again: bool) -> str:
    cells = []
    bare = all(c.text == DASH for h, c in zip(headings, row, strict=True) if _kind(h) == _kind("paper"))
    for heading, cell in zip(headings, row, strict=True):
        repeats = again and heading in ("model", "size", "method", "m")
        marks = ", ".join(f'<a href="#{escape(name)}-{mark}">{mark}</a>' for mark in cell.marks)
        text = "" if repeats else _text(heading, cell.text) + (f"<sup>{marks}</sup>" if marks else "")
        empty = " empty" if repeats or cell.text == DASH or (bare and heading == "metric") else ""
        cells.append(f'<td{_kind(heading, empty)} data-label="{escape(heading)}">{text}</td>')
    return ('<tr class="empty">' if bare and again else "<tr>") + "".join(cells) + "</tr>"


def _text(heading: str, text: str) -> str:
    """Return a number with its n or its interval in small text."""
    number, mark, rest = text.partition(" (n" if " (n" in text else " [")
    if 'class="number"' not in _kind(heading) or not rest:
        return escape(nonbreaking(text))
    return f"{escape(nonbreaking(number))} <small>{escape(nonbreaking(mark + rest).strip())}</small>"


def _kind(heading: str, more: str = "") -> str:
    kind = heading if heading in ("model", "size", "method", "m", "metric") else "number"
    return f' class="{kind}{more}"'


def _plot(plot: Plot) -> str:
    data = base64.b64encode(plot.svg).decode("ascii")
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(plot.description)}">'
        f"<figcaption>{escape(plot.title)}</figcaption></figure>"
    )


def _environments(results: Sequence[Result]) -> str:
    """Return a table with one line per machine, versions and commit."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(_where(result.environment), []).append(result)
    if not groups:
        return ""
    headings = ["hardware", "threads", "torch", "python", "commit", "runs", "time"]
    rows = [[Cell(text) for text in (*where, str(len(group)), _time(group))] for where, group in sorted(groups.items())]
    table = _table("environment", headings, rows, [(str(i), False) for i in range(len(rows))])
    return f'<section id="environment"><h2>Hardware and versions of our results</h2>{table}</section>'


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


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section id="notes"><h2>Notes</h2><ul>{items}</ul></section>'

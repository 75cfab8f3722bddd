"""Tables for the terminal. In a narrow terminal, cells wrap between words, and numbers are never split."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from maxup.lab.output import make_console, one_line
from maxup.lab.report.tables import LEGEND, NAMES, grid, nonbreaking, title
from maxup.lab.results.tables import Comparison

if TYPE_CHECKING:
    from rich.console import Console

WORDS = ("model", "size", "method", "metric", "radius")


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the tables of a report, with bold text and colors only on a terminal."""
    console = wide_console()
    for comparison in comparisons:
        out = grid(comparison)
        rows, previous = [], ""
        for row, line in zip(out.rows, comparison.lines, strict=True):
            repeated = line.key == previous
            rows.append(["" if repeated and h in NAMES else str(c) for h, c in zip(out.headings, row, strict=True)])
            previous = line.key
        bold = [line.row.maxup for line in comparison.lines]
        show_table(console, title(comparison), out.headings, rows, bold)
        for note in (*(f"[{number}] {note}" for number, note in enumerate(out.notes, 1)), *out.remarks):
            console.print(f"  {note}", style="dim")
        console.print()
    if comparisons:
        console.print(LEGEND, style="dim")


def wide_console() -> "Console":
    """Return a console with the width of the terminal, or with 200 columns and no colors if it is not one."""
    console = make_console()
    return console if console.is_terminal else make_console(width=200, no_color=True)


def show_table(
    console: "Console", title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[bool] = ()
) -> None:
    """Print a table. Cells wrap if the terminal is narrow. Rows marked in `bold` are bold."""
    headings, rows = [*map(one_line, headings)], [[*map(one_line, row)] for row in rows]  # before they are measured
    max_width = console.width if console.is_terminal else 10_000
    columns = list(zip(headings, *rows, strict=True))
    gap = "  " if sum(widths(columns, max_width)) + 2 * len(columns) <= max_width else " "
    across = widths(columns, max_width - len(gap) * (len(columns) - 1))
    console.print(title, style="bold")
    for number, row in enumerate([headings, *rows]):
        strong = number == 0 or (bold and bold[number - 1])
        for text in lines(row, headings, across, gap):
            console.print(text, style="bold" if strong else "", soft_wrap=True)


def wrap_text(text: str, width: int, *, cut: bool = True) -> list[str]:
    """Wrap a text to a width. "± 0.08" and "n = 5" stay together. Without `cut`, long words are not split.

    Example:
        >>> wrap_text("95.41 ± 0.08 (n = 5)", 8)
        ['95.41', '± 0.08', '(n = 5)']
    """
    wrapped = textwrap.wrap(nonbreaking(text), width, break_long_words=cut)
    return [line.replace("\xa0", " ") for line in wrapped]


def widths(columns: Sequence[Sequence[str]], max_width: int) -> list[int]:
    """Return column widths that fit into `max_width` if possible. The first cell of a column is its heading.

    The widest column shrinks first, down to its longest word. Then names and headings may be cut, but never numbers.
    """
    sizes = [max(map(len, column)) for column in columns]
    words = [_longest_word(column) for column in columns]
    numbers = [_longest_word(column[1:]) if column[0] not in WORDS else 0 for column in columns]
    names = [max(number, min(8, least)) for number, least in zip(numbers, words, strict=True)]
    for least in (words, names):
        while sum(sizes) > max_width and sizes != least:
            sizes[max(range(len(sizes)), key=lambda i: (sizes[i] > least[i], sizes[i]))] -= 1
    return sizes


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(line) for text in texts for line in wrap_text(text, 1, cut=False)), default=0)


def lines(cells: Sequence[str], headings: Sequence[str], across: Sequence[int], gap: str) -> Iterator[str]:
    """Yield the lines of a row. Words are aligned left, numbers right.

    Example:
        >>> list(lines(["ResNet", "95.41 ± 0.08 (n = 5)"], ["model", "ours"], [6, 12], "  "))
        ['ResNet  95.41 ± 0.08', '             (n = 5)']
    """
    for parts in zip_longest(*map(wrap_text, cells, across), fillvalue=""):
        placed = zip(parts, across, headings, strict=True)
        yield gap.join(f"{part:{'<' if h in WORDS else '>'}{width}}" for part, width, h in placed).rstrip()

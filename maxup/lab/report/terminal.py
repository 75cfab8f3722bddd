"""The tables on a terminal, however narrow: lines break between words, and no number is cut."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from maxup.lab.output import make_console, one_line
from maxup.lab.report.tables import LEGEND, Comparison, grid, tied, title

if TYPE_CHECKING:
    from rich.console import Console

WORDS = ("model", "size", "method", "metric", "radius")
NAMES = ("model", "size", "method", "m")  # said once for all metrics of a row


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the tables of a report; with lines and colors on a terminal, plain elsewhere."""
    console = wide_console()
    for comparison in comparisons:
        out = grid(comparison)
        rows, before = [], ""
        for row, line in zip(out.rows, comparison.lines, strict=True):
            again = line.key == before
            rows.append(["" if again and h in NAMES else str(c) for h, c in zip(out.headings, row, strict=True)])
            before = line.key
        bold = [line.row.maxup for line in comparison.lines]
        show_table(console, title(comparison), out.headings, rows, bold)
        for note in (*(f"[{number}] {note}" for number, note in enumerate(out.notes, 1)), *out.remarks):
            console.print(f"  {note}", style="dim")
        console.print()
    console.print(LEGEND, style="dim")


def wide_console() -> "Console":
    """Of the terminal's width; 200 columns and no colors elsewhere."""
    console = make_console()
    return console if console.is_terminal else make_console(width=200, no_color=True)


def show_table(
    console: "Console", title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[bool] = ()
) -> None:
    """Print a table, its lines broken where the terminal is narrow, and the rows of `bold` in bold."""
    headings, rows = [*map(one_line, headings)], [[*map(one_line, row)] for row in rows]  # before they are measured
    room = console.width if console.is_terminal else 10_000
    columns = list(zip(headings, *rows, strict=True))
    gap = "  " if sum(widths(columns, room)) + 2 * len(columns) <= room else " "
    across = widths(columns, room - len(gap) * (len(columns) - 1))
    console.print(title, style="bold")
    for number, row in enumerate([headings, *rows]):
        strong = number == 0 or (bold and bold[number - 1])
        for text in lines(row, headings, across, gap):
            console.print(text, style="bold" if strong else "", soft_wrap=True)


def fold(text: str, width: int, *, cut: bool = True) -> list[str]:
    """A text in lines of a width; a deviation stays with its sign, n with its number. Without cut, words stay whole.

    Example:
        >>> fold("95.41 ± 0.08 (n = 5)", 8)
        ['95.41', '± 0.08', '(n = 5)']
    """
    found = textwrap.wrap(tied(text), width, break_long_words=cut)
    return [line.replace("\xa0", " ") for line in found]


def widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column, which begins with its heading, all within a room where that can be.

    The widest gives way first, down to its longest word; names and headings may be cut in the end, numbers never.

    Example:
        >>> widths([["model", "ResNet-110"], ["ours", "95.41 ± 0.08 (n = 5)"]], 25)
        [10, 15]
    """
    found = [max(map(len, column)) for column in columns]
    words = [_longest_word(column) for column in columns]
    numbers = [_longest_word(column[1:]) if column[0] not in WORDS else 0 for column in columns]
    names = [max(number, min(8, least)) for number, least in zip(numbers, words, strict=True)]
    for least in (words, names):
        while sum(found) > room and found != least:
            found[max(range(len(found)), key=lambda i: (found[i] > least[i], found[i]))] -= 1
    return found


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(line) for text in texts for line in fold(text, 1, cut=False)), default=0)


def lines(cells: Sequence[str], headings: Sequence[str], across: Sequence[int], gap: str) -> Iterator[str]:
    """A row of a table, as many lines as its highest cell; words to the left, numbers to the right.

    Example:
        >>> list(lines(["ResNet", "95.41 ± 0.08 (n = 5)"], ["model", "ours"], [6, 12], "  "))
        ['ResNet  95.41 ± 0.08', '             (n = 5)']
    """
    for parts in zip_longest(*map(fold, cells, across), fillvalue=""):
        placed = zip(parts, across, headings, strict=True)
        yield gap.join(f"{part:{'<' if h in WORDS else '>'}{width}}" for part, width, h in placed).rstrip()

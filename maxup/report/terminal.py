"""The tables on a terminal, however narrow: lines break between words, and no number is cut."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from maxup.report.tables import LEGEND, Comparison, grid, tied, title

WORDS = ("model", "size", "method", "metric")
NAMES = ("model", "size", "method", "m")  # said once for all metrics of a row


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the tables; with lines and colours on a terminal, plain elsewhere."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    room = console.width
    if not console.is_terminal:
        console, room = Console(highlight=False, markup=False, width=200, no_color=True), 10_000
    for comparison in comparisons:
        console.print(title(comparison), style="bold")
        out = grid(comparison)
        columns = list(zip(out.headings, *(map(str, row) for row in out.rows), strict=True))
        gap = "  " if sum(widths(columns, room)) + 2 * len(columns) <= room else " "
        across = widths(columns, room - len(gap) * (len(columns) - 1))
        for text in lines(out.headings, out.headings, across, gap):
            console.print(text, style="bold", soft_wrap=True)
        before = ""
        for row, line in zip(out.rows, comparison.lines, strict=True):
            again = line.key == before
            cells = ["" if again and h in NAMES else str(c) for h, c in zip(out.headings, row, strict=True)]
            for text in lines(cells, out.headings, across, gap):
                console.print(text, style="bold" if line.row.maxup else "", soft_wrap=True)
            before = line.key
        for note in (*(f"[{number}] {note}" for number, note in enumerate(out.notes, 1)), *out.remarks):
            console.print(f"  {note}", style="dim")
        console.print()
    console.print(LEGEND, style="dim")


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

    The widest gives way first, down to its longest word; names may be cut in the end, numbers never.

    Example:
        >>> widths([["model", "ResNet-110"], ["ours", "95.41 ± 0.08 (n = 5)"]], 25)
        [10, 15]
    """
    found = [max(map(len, column)) for column in columns]
    words = [max(len(line) for text in column for line in fold(text, 1, cut=False)) for column in columns]
    names = [min(8, least) if column[0] in WORDS else least for column, least in zip(columns, words, strict=True)]
    for least in (words, names):
        while sum(found) > room and found != least:
            found[max(range(len(found)), key=lambda i: (found[i] > least[i], found[i]))] -= 1
    return found


def lines(cells: Sequence[str], headings: Sequence[str], across: Sequence[int], gap: str) -> Iterator[str]:
    """A row of a table, as many lines as its highest cell; words to the left, numbers to the right.

    Example:
        >>> list(lines(["ResNet", "95.41 ± 0.08 (n = 5)"], ["model", "ours"], [6, 12], "  "))
        ['ResNet  95.41 ± 0.08', '             (n = 5)']
    """
    for parts in zip_longest(*map(fold, cells, across), fillvalue=""):
        placed = zip(parts, across, headings, strict=True)
        yield gap.join(f"{part:{'<' if h in WORDS else '>'}{width}}" for part, width, h in placed).rstrip()

"""What all plots share: their look, their names, and the two files each becomes."""

import io
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from maxup.lab.output import printable
from maxup.lab.report.tables import Comparison, Line, called
from maxup.lab.results.files import Result
from maxup.lab.results.paper import Table
from maxup.lab.storage import atomic_io

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: Any = {
    "svg.hashsalt": "maxup",  # the same plot is the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
COLORS = ["#5a6b78", "#1b6ca8", "#d1495b", "#2a9d6f", "#8f5fbf", "#c98a1b", "#00a0a8", "#a0522d"]
MARKERS = "os^Dv<>P"
HUGE = 1e100  # no axis shows more
LONGEST = 200  # characters of a text in a plot


@dataclass(frozen=True)
class Plot:
    """A finished plot."""

    name: str
    title: str
    description: str
    """What it shows, for who cannot see it."""
    png: bytes
    svg: bytes

    def save(self, folder: Path) -> None:
        """Write both files."""
        atomic_io.replace(folder / f"{self.name}.png", self.png)
        atomic_io.replace(folder / f"{self.name}.svg", self.svg)


def blank(panels: int = 1) -> tuple["Figure", Any]:
    """A figure with panels above each other, and the array of these; as wide as a phone shows without shrinking."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 0.6 + 2.6 * panels), layout="constrained")
    return figure, figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]


def save_figure(figure: "Figure", file: Path | IO[bytes], **options: Any) -> None:
    """Write a figure whose texts may be any: a name is shown as it is, not read as mathematics or TeX.

    Args:
        figure: What to write.
        file: Where. A path is written whole or not at all, in the format of its ending.
        options: Those of `Figure.savefig`.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = printable(text.get_text(), keep="\n")
        text.set(text=shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}...", parse_math=False, usetex=False)
    with rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the font draws a box instead
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # a long name leaves no room
        if isinstance(file, Path):
            content = io.BytesIO()
            figure.savefig(content, format=file.suffix.removeprefix(".").lower(), **options)
            atomic_io.replace(file, content.getvalue())
        else:
            figure.savefig(file, **options)


def finish(figure: "Figure", comparison: Comparison, kind: str, subject: str, title: str, said: str) -> Plot:
    """The subject above, the legend below with room of its own, and both files."""
    axes = figure.axes
    axes[0].set_title(subject, fontsize=11)
    handles, labels = axes[-1].get_legend_handles_labels()
    if labels:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.2 * len(labels) + 0.1)
        figure.legend(handles, labels, loc="outside lower center")
    png, svg = io.BytesIO(), io.BytesIO()
    save_figure(figure, png, format="png", dpi=160, metadata={"Software": None})
    save_figure(figure, svg, format="svg", metadata={"Date": None, "Creator": None})
    slug = re.sub(r"\W+", "_", subject.lower(), flags=re.ASCII).strip("_")[:100]
    return Plot(f"{comparison.name}-{kind}-{slug}", f"{subject}: {title}", said, png.getvalue(), svg.getvalue())


def main_metric(table: Table) -> str:
    """The metric that is plotted, and listed: the test split's, or the first."""
    return "test" if "test" in table.metrics else next(iter(table.metrics))


def metric_label(comparison: Comparison, metric: str | None = None) -> str:
    """A metric with its unit, by default the main one."""
    table = comparison.table
    title = table.metrics[metric or main_metric(table)].title
    return f"{title} [%]" if table.unit == "%" else f"{title} {table.unit}"


def label(line: Line, budget: float) -> str:
    """What a line of a table is called in a legend."""
    copies = f", m = {line.row.m}" if line.row.m and line.row.maxup else ""
    dynamic = ", dynamic evaluation" if line.row.dynamic else ""
    return line.row.method + copies + dynamic + ("" if budget == 1 else f", {called(budget, [line])}")


def time_unit(longest: float) -> tuple[int, str]:
    """The seconds of a unit that suits times up to the longest, and its name.

    Example:
        >>> time_unit(90), time_unit(7200)
        ((1, 'seconds'), (3600, 'hours'))
    """
    return next(((s, n) for s, n in ((3600, "hours"), (60, "minutes")) if longest >= 2 * s), (1, "seconds"))


def machines(results: Iterable[Result]) -> str:
    """Where results were measured: seconds mean little without it."""
    found = sorted({str(result.environment.get("hardware") or "an unknown machine") for result in results})
    return found[0] if len(found) == 1 else f"{len(found)} kinds of machines"

"""What all plots share: style, labels and files."""

import io
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.lab.output import printable
from maxup.lab.report.tables import budget_label
from maxup.lab.results.files import Result
from maxup.lab.results.paper import Table
from maxup.lab.results.tables import Comparison, Line
from maxup.lab.storage import atomic_io

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: Any = {
    "svg.hashsalt": "maxup",  # the same plot gives the same file
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
HUGE = 1e100  # larger values are not plotted
LONGEST = 200  # characters of a text in a plot


@dataclass(frozen=True)
class Plot:
    """A finished plot."""

    name: str
    title: str
    description: str
    """Alternative text: the numbers that the plot shows."""
    png: bytes
    svg: bytes

    def save(self, folder: Path) -> None:
        """Write the PNG and the SVG file."""
        atomic_io.replace(folder / f"{self.name}.png", self.png)
        atomic_io.replace(folder / f"{self.name}.svg", self.svg)


def new_figure(panels: int = 1) -> tuple["Figure", Any]:
    """Return a figure and its panels, one below the other. The width fits a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 0.6 + 2.6 * panels), layout="constrained")
    return figure, figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]


def save_figure(figure: "Figure", path: Path, **options: Any) -> None:
    """Write a figure atomically, in the format of the suffix. `options` are those of `Figure.savefig`."""
    atomic_io.replace(path, render(figure, path.suffix.removeprefix(".").lower(), **options))


def render(figure: "Figure", format: str, **options: Any) -> bytes:
    """Return a figure as the content of a file. Texts are shown literally, never parsed as math or TeX.

    Args:
        figure: The figure to render.
        format: Such as png or svg.
        options: Options of `Figure.savefig`.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = printable(text.get_text(), keep="\n")
        text.set(text=shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}...", parse_math=False, usetex=False)
    content = io.BytesIO()
    with rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the font draws a box
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # a long name leaves no room
        figure.savefig(content, format=format, **options)
    return content.getvalue()


def finish_figure(
    figure: "Figure", comparison: Comparison, kind: str, subject: str, title: str, description: str
) -> Plot:
    """Add the title above and the legend below, and render both files."""
    axes = figure.axes
    axes[0].set_title(subject, fontsize=11)
    handles, labels = axes[-1].get_legend_handles_labels()
    if labels:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.2 * len(labels) + 0.1)
        figure.legend(handles, labels, loc="outside lower center")
    png = render(figure, "png", dpi=160, metadata={"Software": None})
    svg = render(figure, "svg", metadata={"Date": None, "Creator": None})
    slug = re.sub(r"\W+", "_", subject.lower(), flags=re.ASCII).strip("_")[:100]
    return Plot(f"{comparison.name}-{kind}-{slug}", f"{subject}: {title}", description, png, svg)


def main_metric(table: Table) -> str:
    """Return the metric that plots and lists show: "test", or the first one."""
    return "test" if "test" in table.metrics else next(iter(table.metrics))


def metric_label(comparison: Comparison, metric: str | None = None) -> str:
    """Return the label of a metric with its unit. Default: the main metric."""
    table = comparison.table
    title = table.metrics[metric or main_metric(table)].title
    return f"{title} [%]" if table.unit == "%" else f"{title} {table.unit}"


def label(line: Line, budget: float) -> str:
    """Return the legend label of a line."""
    copies = f", m = {line.row.m}" if line.row.m and line.row.maxup else ""
    dynamic = ", dynamic evaluation" if line.row.dynamic else ""
    return line.row.method + copies + dynamic + ("" if budget == 1 else f", {budget_label(budget, [line])}")


def time_unit(longest: float) -> tuple[int, str]:
    """Return a suitable unit of time, in seconds and by name.

    Example:
        >>> time_unit(90), time_unit(7200)
        ((1, 'seconds'), (3600, 'hours'))
    """
    return next(((s, n) for s, n in ((3600, "hours"), (60, "minutes")) if longest >= 2 * s), (1, "seconds"))


def hardware_names(results: Iterable[Result]) -> str:
    """Return the hardware that results were measured on."""
    names = sorted({str(result.environment.get("hardware") or "an unknown machine") for result in results})
    return names[0] if len(names) == 1 else f"{len(names)} kinds of machines"

"""Plots: learning curves, accuracy against m, cost against accuracy; as PNG and SVG."""

import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.report.results import Result
from maxup.report.tables import Comparison, Line, belongs, measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {
    "svg.hashsalt": "maxup",  # the same plot is the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
COLOURS = ["#1b6ca8", "#d1495b", "#2a9d6f", "#8f5fbf", "#c98a1b", "#5a6b78", "#00a0a8", "#a0522d"]
MARKERS = "os^Dv<>P"
Curve = list[tuple[float, float]]  # epoch and value


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
        (folder / f"{self.name}.png").write_bytes(self.png)
        (folder / f"{self.name}.svg").write_bytes(self.svg)


def plots(comparison: Comparison, results: Sequence[Result]) -> list[Plot]:
    """The plots of a table that there is something to show in, kind by kind, one for each model."""
    from matplotlib import rc_context

    models: dict[str, list[Line]] = {}
    for line in comparison.lines:
        if line.metric == _main(comparison):
            models.setdefault(line.row.model, []).append(line)
    with rc_context(STYLE):
        drawn = [draw(comparison, lines, results) for draw in (copies, curves, cost) for lines in models.values()]
    return [plot for plot in drawn if plot is not None]


def copies(comparison: Comparison, lines: Sequence[Line], results: Sequence[Result] = ()) -> Plot | None:
    """The main metric against the number of copies m, ours and the paper's, where there are at least three m."""
    points = sorted((line.row.m, i) for i, line in enumerate(lines) if line.row.m is not None)
    ticks = sorted({m for m, _ in points})
    if len(ticks) < 3:
        return None
    series = {"the paper": [(m, p.mean, p.std) for m, i in points if (p := lines[i].paper)]}
    for budget in comparison.budgets:
        name = "ours" if budget == 1 else f"ours, budget {budget:g}"
        series[name] = [(m, e.mean, e.std) for m, i in points if (e := lines[i].ours.get(budget))]
    series = {name: values for name, values in series.items() if values}
    figure, axes = _figure()
    for (name, values), colour in zip(series.items(), ["#777777", *COLOURS], strict=False):
        x, y, std = zip(*values, strict=True)
        look = "s--" if name == "the paper" else "o-"
        axes.errorbar(x, y, [s or 0 for s in std], fmt=look, color=colour, capsize=3, markersize=5, label=name)
    axes.set(xlabel="copies m", xscale="log")
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.minorticks_off()
    said = "; ".join(f"{name}: " + ", ".join(f"{y:.2f} at m = {m}" for m, y, _ in v) for name, v in series.items())
    return _finish(figure, axes, comparison, lines, "m", "accuracy against m, mean ± std", said)


def curves(comparison: Comparison, lines: Sequence[Line], results: Sequence[Result]) -> Plot | None:
    """The main metric after every epoch: a thin line a seed, their mean thick."""
    found: dict[tuple[int, float], list[Curve]] = {}
    for i, line in enumerate(lines):
        for budget in comparison.budgets:
            mine = [r for r in results if r.budget == budget and r.curve is not None and belongs(r, line.row)]
            if read := [curve for result in mine if (curve := read_curve(result, line))]:
                found[i, budget] = read
    if not found:
        return None
    figure, axes = _figure()
    for (i, budget), read in found.items():
        look: Any = {"color": COLOURS[i % 8], "linestyle": "-" if budget == 1 else "--"}
        for curve in read:
            axes.plot(*zip(*curve, strict=True), **look, alpha=0.3, linewidth=0.8)
        common = sorted(set.intersection(*({x for x, _ in curve} for curve in read)))
        means = [sum(dict(curve)[x] for curve in read) / len(read) for x in common]
        axes.plot(common, means, **look, linewidth=1.8, label=f"{_label(lines[i], budget)} (n = {len(read)})")
    ends = [y for read in found.values() for curve in read for x, y in curve if x >= 0.15 * curve[-1][0]]
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    axes.set_ylim(min(ends) - margin, max(ends) + margin)  # the first epochs may leave the picture
    axes.set(xlabel="epoch")
    said = ", ".join(_label(lines[i], budget) for i, budget in found)
    return _finish(
        figure, axes, comparison, lines, "curves", "learning curves: thin, each seed; thick, their mean", said
    )


def cost(comparison: Comparison, lines: Sequence[Line], results: Sequence[Result] = ()) -> Plot | None:
    """The main metric of our runs against their wall time; a grey line leads from a twin to its MaxUp."""
    points = [(i, line, b) for i, line in enumerate(lines) for b in comparison.budgets if b in line.ours]
    if not points:
        return None
    longest = max(line.seconds[budget] for _, line, budget in points)
    unit, name = next(((s, n) for s, n in ((3600, "hours"), (60, "minutes")) if longest >= 2 * s), (1, "seconds"))
    places: dict[tuple[str | None, float], tuple[float, float]] = {}
    figure, axes = _figure()
    said = []
    for i, line, budget in points:
        x, found = line.seconds[budget] / unit, line.ours[budget]
        places[line.key, budget] = x, found.mean
        axes.errorbar(
            x, found.mean, found.std or 0, color=COLOURS[i % 8], marker=MARKERS[i % 8], markersize=8, capsize=3,
            linestyle="none", fillstyle="full" if budget == 1 else "none", label=_label(line, budget),
        )  # fmt: skip
        said.append(f"{_label(line, budget)}: {found.mean:.2f} in {x:.3g} {name}")
        if before := places.get((line.row.baseline, budget)):
            axes.plot(*zip(before, (x, found.mean), strict=True), color="#aaaaaa", linewidth=1, zorder=0)
    axes.set(xlabel=f"wall time of a run [{name}]")
    axes.set_xlim(0, 1.1 * longest / unit or 1)
    return _finish(figure, axes, comparison, lines, "cost", "cost against accuracy, mean ± std", "; ".join(said))


def read_curve(result: Result, line: Line) -> Curve:
    """Epoch and value of every evaluation in a run's metrics.jsonl; lines that cannot be read are passed over."""
    points: dict[float, float] = {}
    try:
        text = result.curve.read_text(encoding="utf-8") if result.curve else ""
    except (OSError, UnicodeDecodeError):
        return []
    for record in map(_parse, text.splitlines()):
        numbers = {k: float(v) for k, v in record.items() if isinstance(v, int | float) and math.isfinite(v)}
        value = measured(Result(**{**vars(result), "last": numbers}), line.row, line.metric)
        if value is not None and "epoch" in numbers:
            points[numbers["epoch"]] = value
    return sorted(points.items())


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _main(comparison: Comparison) -> str:
    metrics = comparison.table.metrics
    return "test" if "test" in metrics else next(iter(metrics))


def _label(line: Line, budget: float) -> str:
    copies = f", m = {line.row.m}" if line.row.m and line.row.maxup else ""
    dynamic = ", dynamic evaluation" if line.row.dynamic else ""
    return line.row.method + copies + dynamic + ("" if budget == 1 else f", budget {budget:g}")


def _figure() -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 4.2), layout="constrained")
    return figure, figure.add_subplot()


def _finish(
    figure: "Figure", axes: "Axes", comparison: Comparison, lines: Sequence[Line], kind: str, title: str, said: str
) -> Plot:
    """Titles, the legend below, and both files."""
    table, model = comparison.table, lines[0].row.model
    metric = table.metrics[_main(comparison)].title
    axes.set(title=model, ylabel=f"{metric} [%]" if table.unit == "%" else f"{metric} {table.unit}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    slug = re.sub(r"\W+", "_", model.lower(), flags=re.ASCII).strip("_")
    return Plot(f"{comparison.name}-{kind}-{slug}", f"{model}: {title}", said, png.getvalue(), svg.getvalue())

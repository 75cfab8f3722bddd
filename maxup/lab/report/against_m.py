"""Plots against the number of copies m: accuracy, and training time."""

from collections.abc import Sequence
from typing import Any

from maxup.lab.report.figure import (
    COLORS,
    Plot,
    finish_figure,
    hardware_names,
    main_metric,
    metric_label,
    new_figure,
    time_unit,
)
from maxup.lab.report.tables import budget_label
from maxup.lab.results.files import Result
from maxup.lab.results.tables import Comparison, Line, belongs

PAPER = "the paper"
FEWEST = 3  # different m that a plot needs
TIMES = "×"  # noqa: RUF001


def accuracy_against_m(comparison: Comparison, subject: str, lines: Sequence[Line]) -> Plot | None:
    """Plot the main metric against m, the paper's and ours. None if there are fewer than three m."""
    by_m = _by_m(lines)
    paper = [(m, p.mean, p.std) for m, line in by_m if (p := line.paper)]
    series = [(_counted(PAPER, [comparison.table.runs]), paper)]
    for budget in comparison.budgets:
        ours = [(m, e) for m, line in by_m if (e := line.ours.get(budget))]
        name = _counted(_ours(budget, lines), [e.n for _, e in ours])
        series.append((name, [(m, e.mean, e.std) for m, e in ours]))
    series = [(name, points) for name, points in series if points]
    ticks = sorted({m for _, points in series for m, _, _ in points})
    if len(ticks) < FEWEST:
        return None
    figure, (panel,) = new_figure()
    for i, (name, points) in enumerate(series):
        x, y, std = zip(*points, strict=True)
        panel.errorbar(x, y, [s or 0 for s in std], **_style(name, i), capsize=3, label=name)
    panel.set(xlabel="copies m", ylabel=metric_label(comparison), xscale="log")
    panel.set_xticks(ticks, [str(m) for m in ticks])
    panel.minorticks_off()
    panel.margins(x=0.08)
    description = "; ".join(f"{name}: " + ", ".join(f"{y:.2f} at m = {m}" for m, y, _ in v) for name, v in series)
    metric = comparison.table.metrics[main_metric(comparison.table)].title.lower()
    title = f"{metric} against the number of copies m, mean ± std."
    return finish_figure(figure, comparison, "m", subject, title, description)


def cost_against_m(
    comparison: Comparison, subject: str, lines: Sequence[Line], results: Sequence[Result]
) -> Plot | None:
    """Plot the training time against m, also relative to m = 1. None if there are fewer than three m."""
    by_m = _by_m(lines)
    series = {b: [(m, line.seconds[b]) for m, line in by_m if b in line.seconds] for b in comparison.budgets}
    series = {budget: points for budget, points in series.items() if len(points) >= FEWEST}
    if not series:
        return None
    longest = max(seconds for points in series.values() for _, seconds in points)
    unit, name = time_unit(longest)
    figure, (panel,) = new_figure()
    for i, (budget, points) in enumerate(series.items(), 1):
        x, y = [m for m, _ in points], [seconds / unit for _, seconds in points]
        panel.plot(x, y, **_style("ours", i), label=_ours(budget, lines))
        for m, height in zip(x, y, strict=True):
            if x[0] == 1 and m > 1 and y[0] > 0:
                panel.annotate(
                    f"{height / y[0]:.2g}{TIMES}", (m, height), (5, -9), textcoords="offset points", fontsize=8.5
                )
    ticks = sorted({m for points in series.values() for m, _ in points})
    panel.set(xlabel="copies m", ylabel=f"training time per run [{name}]", ylim=(0, 1.12 * longest / unit or 1))
    panel.set_xticks(ticks, [str(m) for m in ticks])
    panel.set_xlim(0, 1.12 * ticks[-1])
    description = "; ".join(
        f"{_ours(b, lines)}: " + ", ".join(f"{s / unit:.3g} {name} at m = {m}" for m, s in v) for b, v in series.items()
    )
    where = hardware_names(r for r in results if r.budget in series and any(belongs(r, line.row) for line in lines))
    title = f"training time against m, on {where}. {TIMES} is relative to m = 1."
    return finish_figure(figure, comparison, "time", subject, title, description)


def _by_m(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    return sorted(((line.row.m, line) for line in lines if line.row.m is not None), key=lambda pair: pair[0])


def _ours(budget: float, lines: Sequence[Line]) -> str:
    return "ours" if budget == 1 else f"ours, {budget_label(budget, lines)}"


def _counted(name: str, seeds: Sequence[int | None]) -> str:
    """Return the name of a series with its number of seeds, if known."""
    n = sorted({count for count in seeds if count})
    return name + (f" (n = {n[0]}{f' to {n[-1]}' if len(n) > 1 else ''})" if n else "")


def _style(name: str, i: int) -> dict[str, Any]:
    if name.startswith(PAPER):
        return {"fmt": "s--", "color": "#777777", "markersize": 5}
    return {"color": COLORS[1 + i % 7], "marker": "o", "markersize": 5}

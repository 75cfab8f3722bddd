"""Plot of accuracy or perplexity against training time."""

from collections.abc import Sequence

from maxup.lab.report.figure import (
    COLORS,
    MARKERS,
    Plot,
    finish_figure,
    hardware_names,
    label,
    metric_label,
    new_figure,
    time_unit,
)
from maxup.lab.results.files import Result
from maxup.lab.results.tables import Comparison, Line, belongs


def cost(comparison: Comparison, subject: str, lines: Sequence[Line], results: Sequence[Result]) -> Plot | None:
    """Plot the main metric of our runs against their training time. Gray lines connect MaxUp with its baseline."""
    points = [(i, line, b) for i, line in enumerate(lines) for b in comparison.budgets if b in line.seconds]
    if not points:
        return None
    longest = max(line.seconds[budget] for _, line, budget in points)
    unit, name = time_unit(longest)
    places: dict[tuple[str | None, float], tuple[float, float]] = {}
    figure, (panel,) = new_figure()
    descriptions = []
    for i, line, budget in points:
        x, ours = line.seconds[budget] / unit, line.ours[budget]
        places[line.key, budget] = x, ours.mean
        panel.errorbar(
            x, ours.mean, ours.std or 0, color=COLORS[i % 8], marker=MARKERS[i % 8], markersize=7, capsize=3,
            linestyle="none", fillstyle="full" if budget == 1 else "none",
            label=f"{label(line, budget)} (n = {ours.n})",
        )  # fmt: skip
        descriptions.append(f"{label(line, budget)}: {ours.mean:.2f} in {x:.3g} {name}")
        if before := places.get((line.row.baseline, budget)):
            panel.plot(*zip(before, (x, ours.mean), strict=True), color="#aaaaaa", linewidth=1, zorder=0)
    panel.set(xlabel=f"training time per run [{name}]", ylabel=metric_label(comparison))
    panel.set_xlim(0, 1.1 * longest / unit or 1)
    panel.margins(y=0.1)
    where = hardware_names(r for r in results if any(belongs(r, line.row) for _, line, _ in points))
    what = "accuracy" if comparison.table.unit == "%" else comparison.table.unit
    title = f"{what} against training time, mean ± std, on {where}."
    return finish_figure(figure, comparison, "cost", subject, title, "; ".join(descriptions))

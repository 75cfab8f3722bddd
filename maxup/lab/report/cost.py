"""Cost against accuracy or perplexity: what the time of our runs buys."""

from collections.abc import Sequence

from maxup.lab.report.figure import COLORS, MARKERS, Plot, blank, finish, label, machines, metric_label, time_unit
from maxup.lab.report.tables import Comparison, Line, belongs
from maxup.lab.results.files import Result


def cost(comparison: Comparison, subject: str, lines: Sequence[Line], results: Sequence[Result]) -> Plot | None:
    """The main metric of our runs against their training time; a gray line leads from a twin to its MaxUp."""
    points = [(i, line, b) for i, line in enumerate(lines) for b in comparison.budgets if b in line.seconds]
    if not points:
        return None
    longest = max(line.seconds[budget] for _, line, budget in points)
    unit, name = time_unit(longest)
    places: dict[tuple[str | None, float], tuple[float, float]] = {}
    figure, (panel,) = blank()
    said = []
    for i, line, budget in points:
        x, found = line.seconds[budget] / unit, line.ours[budget]
        places[line.key, budget] = x, found.mean
        panel.errorbar(
            x, found.mean, found.std or 0, color=COLORS[i % 8], marker=MARKERS[i % 8], markersize=7, capsize=3,
            linestyle="none", fillstyle="full" if budget == 1 else "none",
            label=f"{label(line, budget)} (n = {found.n})",
        )  # fmt: skip
        said.append(f"{label(line, budget)}: {found.mean:.2f} in {x:.3g} {name}")
        if before := places.get((line.row.baseline, budget)):
            panel.plot(*zip(before, (x, found.mean), strict=True), color="#aaaaaa", linewidth=1, zorder=0)
    panel.set(xlabel=f"training time of a run [{name}]", ylabel=metric_label(comparison))
    panel.set_xlim(0, 1.1 * longest / unit or 1)
    panel.margins(y=0.1)
    where = machines(r for r in results if any(belongs(r, line.row) for _, line, _ in points))
    what = "accuracy" if comparison.table.unit == "%" else comparison.table.unit
    title = f"cost against {what}, mean ± std, on {where}."
    return finish(figure, comparison, "cost", subject, title, "; ".join(said))

"""Plot of certified accuracy against the radius, for the best model of each row and for the paper."""

from itertools import cycle

from maxup.lab.report.figure import COLORS, MARKERS, Plot, finish_figure, new_figure
from maxup.lab.report.tables import budget_label
from maxup.lab.results.tables import Comparison


def accuracy_against_radius(comparison: Comparison) -> Plot | None:
    """Plot every row of the table, the paper's dashed and ours solid. None if we have no results."""
    if not any(line.ours for line in comparison.lines):
        return None
    figure, (panel,) = new_figure()
    descriptions = []
    for i, (key, row) in enumerate(comparison.table.rows.items()):
        lines = [line for line in comparison.lines if line.key == key]
        name, style = row.method.partition(" (")[0], {"color": COLORS[i], "marker": MARKERS[i], "markersize": 4}
        if paper := [(float(line.metric), line.paper.mean) for line in lines if line.paper]:
            panel.plot(*zip(*paper, strict=True), "--", **style, alpha=0.6, label=f"the paper: {name}")
        for budget, linestyle in zip(comparison.budgets, cycle(("-", ":", "-.")), strict=False):
            points = [(float(line.metric), e.mean, e.std) for line in lines if (e := line.ours.get(budget))]
            if points:
                radius, mean, std = zip(*points, strict=True)
                text = name + ("" if budget == 1 else f", {budget_label(budget, lines)}")
                bars = None if None in std else std  # one seed has none
                panel.errorbar(radius, mean, bars, linestyle=linestyle, **style, capsize=3, label=f"ours: {text}")
                descriptions.append(f"{text}: " + ", ".join(f"{y:.1f} at {r:g}" for r, y, _ in points))
    panel.set(xlabel="l2 radius", ylabel="certified accuracy [%]", ylim=(0, None))
    model = next(iter(comparison.table.rows.values())).model
    title = "certified accuracy against the radius, for the best model at each radius, mean ± std over seeds."
    return finish_figure(figure, comparison, "radius", model, title, "; ".join(descriptions))

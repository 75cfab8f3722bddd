"""Certified accuracy against the radius, the best of each row's models, beside the paper's."""

from itertools import cycle

from maxup.lab.report.figure import COLORS, MARKERS, Plot, blank, finish
from maxup.lab.report.tables import Comparison, called


def accuracy_against_radius(comparison: Comparison) -> Plot | None:
    """Every row of the table as a line, the paper's dashed and ours solid; None where nothing is ours."""
    if not any(line.ours for line in comparison.lines):
        return None
    figure, (panel,) = blank()
    said = []
    for i, (key, row) in enumerate(comparison.table.rows.items()):
        lines = [line for line in comparison.lines if line.key == key]
        name, look = row.method.partition(" (")[0], {"color": COLORS[i], "marker": MARKERS[i], "markersize": 4}
        if paper := [(float(line.metric), line.paper.mean) for line in lines if line.paper]:
            panel.plot(*zip(*paper, strict=True), "--", **look, alpha=0.6, label=f"the paper: {name}")
        for budget, style in zip(comparison.budgets, cycle(("-", ":", "-.")), strict=False):
            found = [(float(line.metric), e.mean, e.std) for line in lines if (e := line.ours.get(budget))]
            if found:
                radius, mean, std = zip(*found, strict=True)
                text = name + ("" if budget == 1 else f", {called(budget, lines)}")
                bars = None if None in std else std  # of one seed there are none
                panel.errorbar(radius, mean, bars, linestyle=style, **look, capsize=3, label=f"ours: {text}")
                said.append(f"{text}: " + ", ".join(f"{y:.1f} at {r:g}" for r, y, _ in found))
    panel.set(xlabel="l2 radius", ylabel="certified accuracy [%]", ylim=(0, None))
    model = next(iter(comparison.table.rows.values())).model
    title = "certified accuracy against the radius, the best model at each; mean ± std over the seeds."
    return finish(figure, comparison, "radius", model, title, "; ".join(said))

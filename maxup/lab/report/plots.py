"""All plots of a table."""

from collections.abc import Sequence
from dataclasses import replace

from maxup.lab.recipes.load import run_name
from maxup.lab.report.against_m import accuracy_against_m, cost_against_m
from maxup.lab.report.against_radius import accuracy_against_radius
from maxup.lab.report.cost import cost
from maxup.lab.report.curves import curves
from maxup.lab.report.figure import HUGE, STYLE, Plot, main_metric
from maxup.lab.results.files import Result
from maxup.lab.results.paper import Row
from maxup.lab.results.tables import Comparison, Line


def plots(comparison: Comparison, results: Sequence[Result]) -> list[Plot]:
    """Draw all plots that have data. For each model, the plots against m come first.

    The runs of a MaxUp recipe and of its baseline form one family.
    """
    from matplotlib import rc_context

    models: dict[str, dict[str, list[Line]]] = {}
    for line in comparison.lines:
        if line.metric == main_metric(comparison.table):
            models.setdefault(line.row.model, {}).setdefault(_family(line.row), []).append(_drawable(line))
    drawn: list[Plot | None] = []
    with rc_context(STYLE):
        if comparison.name == "table-certified" and comparison.table.number:  # the paper's
            drawn.append(accuracy_against_radius(comparison))
        for model, families in models.items():
            for lines in families.values():
                subject = model if len(families) == 1 else f"{model}, {lines[0].row.method}"
                drawn += [
                    accuracy_against_m(comparison, subject, lines),
                    cost_against_m(comparison, subject, lines, results),
                ]
            everything = [line for lines in families.values() for line in lines]
            drawn += [draw(comparison, model, everything, results) for draw in (curves, cost)]
    return [plot for plot in drawn if plot is not None]


def _drawable(line: Line) -> Line:
    """Remove perplexities that are infinite or huge."""
    ours = {budget: estimate for budget, estimate in line.ours.items() if estimate.mean < HUGE}
    return replace(line, ours=ours, seconds={budget: s for budget, s in line.seconds.items() if budget in ours})


def _family(row: Row) -> str:
    return run_name(row.recipe).removesuffix("-maxup") if row.recipe else row.method

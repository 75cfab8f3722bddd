"""Plot of learning curves: training loss and the main metric per epoch, mean and standard deviation over seeds."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from maxup.lab.report.figure import COLORS, HUGE, Plot, finish_figure, label, metric_label, new_figure
from maxup.lab.results.files import Result
from maxup.lab.results.statistics import estimate
from maxup.lab.results.tables import Comparison, Line, belongs, measured
from maxup.lab.storage.atomic_io import LONG, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = dict[float, float]  # epoch -> value


def curves(comparison: Comparison, subject: str, lines: Sequence[Line], results: Sequence[Result]) -> Plot | None:
    """Plot one line per row of a table that has runs with a metrics.jsonl. None if there are none."""
    found: dict[tuple[int, float], list[tuple[Curve, Curve]]] = {}
    # The test split of a text is evaluated only at the end.
    metric = "valid" if "valid" in comparison.table.metrics else None
    for i, line in enumerate(replace(line, metric=metric or line.metric) for line in lines):
        for budget in comparison.budgets:
            runs = [r for r in results if r.budget == budget and r.curve is not None and belongs(r, line.row)]
            if read := [pair for result in runs if (pair := read_curves(result, line))[0]]:
                found[i, budget] = read
    if not found:
        return None
    with_loss = any(losses for read in found.values() for _, losses in read)
    figure, panels = new_figure(2 if with_loss else 1)
    for (i, budget), read in found.items():
        style: Any = {"color": COLORS[i % 8], "linestyle": "-" if budget == 1 else "--"}
        name = f"{label(lines[i], budget)} (n = {len(read)})"
        _band(panels[-1], [values for values, _ in read], name, style)
        if with_loss:
            _band(panels[0], [losses for _, losses in read if losses], name, style)
    for panel, which in zip(panels, (1, 0) if with_loss else (0,), strict=True):
        _zoom(panel, [pair[which] for read in found.values() for pair in read])
        panel.set_ylabel("training loss" if which else metric_label(comparison, metric))
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    description = "; ".join(
        f"{label(lines[i], budget)} ends at {e.mean:.2f}"
        for (i, budget), read in found.items()
        if (e := estimate([values[max(values)] for values, _ in read]))
    )
    note = " The training loss is the loss of the selected copy, the worst one with MaxUp." if with_loss else ""
    title = f"learning curves, mean over n seeds. The band is ± std.{note}"
    return finish_figure(figure, comparison, "curves", subject, title, description)


def read_curves(result: Result, line: Line) -> tuple[Curve, Curve]:
    """Return the metric after every epoch of a run, and the mean training loss of every epoch.

    Invalid lines of its metrics.jsonl are skipped.
    """
    values: Curve = {}
    losses: Curve = {}
    loss, steps, before = 0.0, 0.0, 0.0  # sums over this epoch; a record covers the steps since the last one
    for record in _records(result):
        numbers = {k: float(v) for k, v in record.items() if isinstance(v, int | float) and abs(v) < HUGE}
        if "train_loss" in numbers and (since := numbers.get("step", 0.0) - before) > 0:
            loss, steps, before = loss + since * numbers["train_loss"], steps + since, before + since
        value = measured(replace(result, last=numbers), line.row, line.metric)
        if value is not None and "epoch" in numbers:
            values[numbers["epoch"]] = value
            if steps:
                losses[numbers["epoch"]] = loss / steps
            loss, steps = 0.0, 0.0
    return values, losses


def cut_short(result: Result) -> str | None:
    """Return a message if metrics.jsonl is unreadable or ends before the run did, otherwise None."""
    if result.curve is None or result.steps is None or not os.path.lexists(result.curve):
        return None
    steps = [record["step"] for record in _records(result) if type(record.get("step")) is int]
    last = steps[-1] if steps else 0
    if last >= result.steps:
        return None
    return f"{result.curve} was truncated: records of steps {last + 1} to {result.steps} are missing"


def _records(result: Result) -> list[dict[str, Any]]:
    """Return the valid records of a run's metrics.jsonl. Empty if the file cannot be read."""
    if result.curve is None:
        return []
    try:
        lines = read(result.curve, most=LONG).decode().splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def _band(panel: "Axes", read: Sequence[Curve], name: str, style: dict[str, Any]) -> None:
    """Plot the mean over the epochs that all curves have, with a band of ± one standard deviation."""
    if not read:
        return
    epochs = sorted(set.intersection(*map(set, read)))
    estimates = [e for epoch in epochs if (e := estimate([curve[epoch] for curve in read]))]
    means, widths = [e.mean for e in estimates], [e.std or 0.0 for e in estimates]
    panel.plot(epochs, means, **style, linewidth=1.6, label=name, marker="o" if len(epochs) == 1 else "")
    low, high = ([m + sign * w for m, w in zip(means, widths, strict=True)] for sign in (-1, 1))
    panel.fill_between(epochs, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _zoom(panel: "Axes", read: Sequence[Curve]) -> None:
    """Set the y range to the values after the first epochs."""
    late = [y for curve in read if curve for x, y in curve.items() if x >= 0.15 * max(curve)]
    margin = 0.08 * (max(late) - min(late)) or 0.1 * abs(max(late)) or 1.0
    panel.set_ylim(min(late) - margin, max(late) + margin)

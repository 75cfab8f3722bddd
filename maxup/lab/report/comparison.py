"""A comparison as text for the terminal and as a plot."""

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from maxup.lab.report.figure import save_figure
from maxup.lab.results.comparison import CERTIFIED_RADII, CORRUPTED, METRICS, TIME_OF, controls, is_maxup
from maxup.lab.results.statistics import FEWEST

WIDEST = 5  # panels of a plot in one row
CHARACTERS = 12.6  # of the title per inch


def text(result: dict[str, Any]) -> str:
    """Return the result of a comparison as text for the terminal."""
    table, seeds = result["summary"], len(result["seeds"])
    attack, lines = result["attack"], list[str]()
    width = max(map(len, result["runs"]))
    for metric, by_row in table.items():
        title, d = METRICS[metric].title, METRICS[metric].decimals
        settings = f", radius {attack['radius']:g}, {attack['steps']} steps" if metric == "attacked" else ""
        if metric == "radius" and (how := result.get("certification")):
            noise = f", noise {how['sigma']:g}" if "sigma" in how else ""
            settings = f"{noise}, {how['images']:,} images, {how['n']:,} copies"
        lines.append(f"\n{title}{settings}, mean ± std of {seeds} seeds")
        for name, row in by_row.items():
            line = f"  {name:<{width}} {row['mean']:8.{d}f}"
            line += "" if row["std"] is None else f" ± {row['std']:<6.{d}f}"
            if "difference" in row:
                line += f"  {row['difference']:+.{d}f} {interval(row, d)}"
            lines.append(line.rstrip())
    kind = ("the paired" if result["paired"] else "Welch's") + " 95 % interval"
    note = (
        f"In brackets: {kind}, none if all seeds give the same value."
        if seeds >= FEWEST
        else f"{FEWEST} or more seeds give {kind}."
    )
    lines.append(f"\nLast column: difference from {next(iter(result['runs']))}. {note}")
    if result.get("images"):
        lines.append(f"All but the clean accuracy and certificates is measured on {result['images']} test examples.")
    for name, record in result["equal_time"].items():
        other = name.rpartition(TIME_OF)[2]
        lines.append(f"{name}: {record['epochs']} epochs, because {other} takes {record['ratio']:.2f} times as long.")
        lines.append(f"  {at_equal_time(name, record)}")
    lines += against_controls(result)
    if found := verdicts(result):
        lines += ["", *found]
    return "\n".join(lines)


def at_equal_time(name: str, record: dict[str, Any]) -> str:
    """Return one line with the difference between MaxUp and the baseline that was trained for the same time.

    Args:
        name: Name of the row that it is compared with, such as "m = 1, time of m = 4".
        record: Its entry of `equal_time` in the result.
    """
    return _difference(name.rpartition(TIME_OF)[2], name, record["gain"])


def against_controls(result: dict[str, Any]) -> list[str]:
    """Return one line per control and per fast row.

    Is the *worst* copy the cause? Is fast scoring as good as exact scoring?
    """
    found = controls(result["runs"], paired=result["paired"])
    return [_difference(ours, control, gains) for (ours, control), gains in found.items()]


def verdicts(result: dict[str, Any]) -> list[str]:
    """Return one line per MaxUp row and baseline: on which metrics it is better or worse. Empty below 3 seeds."""
    if len(result["seeds"]) < FEWEST:
        return []
    table, lines = result["summary"], list[str]()
    for name in result["runs"]:
        if is_maxup(name) and "difference" in table["seconds"][name]:
            lines.append(
                f"{name} against m = 1 at equal epochs. {_verdict({m: rows[name] for m, rows in table.items()})}"
            )
            for timed, record in result["equal_time"].items():
                baseline, _, ours = timed.rpartition(TIME_OF)
                if ours == name:
                    lines.append(f"{name} against {baseline} at equal time. {_verdict(record['gain'])}")
    return [*lines, "Each interval misses a true difference of 0 in 1 of 20 cases by chance."] if lines else []


def _verdict(gains: dict[str, dict[str, Any]]) -> str:
    """Return on which metrics the interval of a difference is above or below 0, or contains it. Without the time."""
    found: dict[str, list[str]] = {"Better": [], "Worse": [], "Undecided": []}
    for metric, row in gains.items():
        if metric != "seconds" and row.get("low") is not None:
            better = (row["low"] > 0) != METRICS[metric].lower_is_better
            word = "Undecided" if row["low"] <= 0 <= row["high"] else "Better" if better else "Worse"
            found[word].append(METRICS[metric].short)
    return ". ".join(f"{word}: {', '.join(names)}" for word, names in found.items() if names) or "Undecided"


def _difference(ours: str, baseline: str, gains: dict[str, dict[str, Any]]) -> str:
    parts = []
    for metric, row in gains.items():
        d = METRICS[metric].decimals
        parts.append(f"{METRICS[metric].short} {row['difference']:+.{d}f}{interval(row, d)}")
    return f"{ours} minus {baseline}: {', '.join(parts)}."


def interval(row: dict[str, Any], decimals: int) -> str:
    """Return the interval of a difference with a leading space, or an empty string if there is none."""
    return "" if row["low"] is None else f" [{row['low']:+.{decimals}f}, {row['high']:+.{decimals}f}]"


def plot(result: dict[str, Any], path: Path, title: str) -> None:
    """Plot one panel per metric and one line per row: mean ± std, with the seeds as small dots below.

    The dashed line is the mean of the baseline. `title` starts the title.
    """
    from matplotlib.figure import Figure

    runs, table = result["runs"], result["summary"]
    # The others do not fit beside the certified accuracies.
    certified = ["clean", "radius", *(f"certified_{radius:g}" for radius in CERTIFIED_RADII)]
    left_out = ("seconds", *(f"corrupted_{kind}" for kind in CORRUPTED))  # the mean over corruptions is shown
    shown = certified if "radius" in table else [metric for metric in table if metric not in left_out]
    metrics = [metric for metric in shown if metric in table]
    names = list(runs)
    places = np.arange(len(names))
    lines = 1 if len(metrics) <= WIDEST else 2
    columns = -(-len(metrics) // lines)
    size = (2.75 * columns + 1.3, 0.4 + lines * (1.2 + 0.42 * len(names)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for unused in panels.flat[len(metrics) :]:
        unused.set_visible(False)
    for panel, metric in zip(panels.flat, metrics, strict=False):
        values = np.array([[run[metric] for run in runs[name]] for name in names])  # (rows, seeds)
        panel.axvline(table[metric][names[0]]["mean"], color="0.75", linewidth=1, linestyle="--", zorder=0)
        spread = np.linspace(0.12, 0.3, values.shape[1])
        for place, name, seeds in zip(places, names, values, strict=True):
            color = "C0" if is_maxup(name) else "C1" if name in result["equal_time"] else "C2"
            color = "0.35" if name == names[0] else color
            panel.plot(seeds, place + spread, "o", color=color, alpha=0.3, markersize=3, markeredgewidth=0)
            row = table[metric][name]
            panel.errorbar(row["mean"], place, xerr=row["std"], color=color, marker="o", markersize=6, capsize=3)
            text = f"{row['mean']:.{METRICS[metric].decimals}f}"
            panel.annotate(text, (row["mean"], place), (0, 7), textcoords="offset points", ha="center", fontsize=8)
        lower = "\n(lower is better)" if METRICS[metric].lower_is_better else ""
        panel.set_title(f"{METRICS[metric].title}{lower}", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.tick_params(axis="y", length=0)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.margins(x=0.12)
    panels[0][0].set_yticks(places, names)
    panels[0][0].set_ylim(len(names) - 0.5, -0.6)
    other = set(metrics) - set(certified)
    images = f", {result['images']} test examples except for clean accuracy" if result.get("images") and other else ""
    about = f"mean ± std of {len(result['seeds'])} seeds{images}; small dots are single seeds"
    figure.suptitle(fill(f"{title}: {about}", round(CHARACTERS * size[0])), fontsize=10)
    save_figure(figure, path, dpi=140)

"""A comparison of twins as numbers, as text and as a picture."""

from dataclasses import dataclass
from typing import Any

from maxup.lab.results.statistics import FEWEST, difference, estimate

Runs = dict[str, list[dict[str, float]]]  # row -> one dict of metrics a seed; the first row is the twin


@dataclass(frozen=True)
class Metric:
    """How a number is shown."""

    title: str
    short: str
    decimals: int
    unit: str = ""


METRICS = {
    "clean": Metric("accuracy, clean [%]", "clean", 2, " %"),
    "worst": Metric("accuracy, worst of 20 copies [%]", "worst of 20", 2, " %"),
    "attacked": Metric("accuracy under PGD [%]", "PGD", 2, " %"),
    "gradient": Metric("input-gradient norm", "gradient", 3),
    "seconds": Metric("seconds of training", "time", 1, " s"),
}


def twin(runs: Runs) -> str:
    """The row all others are compared with."""
    return next(iter(runs))


def short(metric: str) -> str:
    """A metric's name in a line."""
    return METRICS[metric].short


def show(metric: str, value: float) -> str:
    """A value with its unit.

    Example:
        >>> show("clean", 97.409)
        '97.41 %'
    """
    return f"{value:.{METRICS[metric].decimals}f}{METRICS[metric].unit}"


def summary(runs: Runs, *, paired: bool) -> dict[str, dict[str, dict[str, Any]]]:
    """By metric and row: mean, deviation, and the difference to the first row with its 95 % interval (see `gain`)."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    base = twin(runs)
    gains = {name: gain(results, runs[base], paired=paired) for name, results in runs.items() if name != base}
    for metric in METRICS:
        if any(metric not in run for results in runs.values() for run in results):
            continue
        for name, results in runs.items():
            if ours := estimate([run[metric] for run in results]):
                row: dict[str, Any] = {"mean": ours.mean, "std": ours.std} | gains.get(name, {}).get(metric, {})
                table.setdefault(metric, {})[name] = row
    return table


def gain(ours: list[dict[str, float]], baseline: list[dict[str, float]], *, paired: bool) -> dict[str, dict[str, Any]]:
    """By metric, how much one row has more than another, with its 95 % interval.

    Args:
        ours: Metrics of every seed.
        baseline: Metrics of the same seeds.
        paired: Whether a seed chooses the images, as in `statistics.difference`.

    Example:
        >>> gain([{"clean": 98.0}, {"clean": 99.0}], [{"clean": 97.0}, {"clean": 98.0}], paired=False)
        {'clean': {'difference': 1.0, 'low': None, 'high': None}}
    """
    values = [[{i: run[m] for i, run in enumerate(row) if m in run} for m in METRICS] for row in (ours, baseline)]
    found = {m: difference(a, b, paired=paired) for m, a, b in zip(METRICS, *values, strict=True)}
    return {m: {"difference": f.mean, "low": f.low, "high": f.high} for m, f in found.items() if f}


def interval(row: dict[str, Any], decimals: int) -> str:
    """The interval of a difference with a space before it, or nothing where there is none.

    Example:
        >>> interval({"difference": 1.0, "low": 0.5, "high": 1.5}, 2), interval({"low": None, "high": None}, 2)
        (' [+0.50, +1.50]', '')
    """
    return "" if row["low"] is None else f" [{row['low']:+.{decimals}f}, {row['high']:+.{decimals}f}]"


def text(result: dict[str, Any]) -> str:
    """A comparison's result as text for a terminal."""
    table, seeds = result["summary"], len(result["seeds"])
    attack, lines = result["attack"], list[str]()
    width = max(map(len, table["clean"]))
    for metric, by_row in table.items():
        about, d = METRICS[metric], METRICS[metric].decimals
        more = f", radius {attack['radius']:g}, {attack['steps']} steps" if metric == "attacked" else ""
        lines.append(f"\n{about.title}{more}, mean ± std of {seeds} seeds")
        for name, row in by_row.items():
            line = f"  {name:<{width}} {row['mean']:8.{d}f}"
            line += "" if row["std"] is None else f" ± {row['std']:<6.{d}f}"
            if "difference" in row:
                line += f"  {row['difference']:+.{d}f} {interval(row, d)}"
            lines.append(line.rstrip())
    kind = ("the paired" if result["paired"] else "Welch's") + " 95 % interval"
    more = f"It has {kind}, none where all seeds agree." if seeds >= FEWEST else f"{FEWEST} or more seeds give {kind}."
    lines.append(f"\nRight: difference to {next(iter(table['clean']))}. {more}")
    for name, stretch in result["equal_time"].items():
        lines.append(f"{name}: {stretch['epochs']} epochs, since a run takes {stretch['ratio']:.2f} times as long.")
        lines.append(f"  {at_equal_time(name, stretch)}")
    return "\n".join(lines)


def at_equal_time(name: str, stretch: dict[str, Any]) -> str:
    """A sentence on what MaxUp has more than its twin of equal time, whose name and record are given."""
    said = []
    for metric, row in stretch["gain"].items():
        d = METRICS[metric].decimals
        said.append(f"{short(metric)} {row['difference']:+.{d}f}{interval(row, d)}")
    return f"{name.removeprefix('m = 1, time of ')} minus {name}: {', '.join(said)}."

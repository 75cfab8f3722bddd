"""Statistics of a comparison: mean and standard deviation per row, and differences from the baseline."""

import re
from dataclasses import dataclass
from typing import Any

from maxup.lab.results.statistics import difference, estimate

Runs = dict[str, list[dict[str, float]]]  # row -> metrics per seed; the first row is the baseline


@dataclass(frozen=True)
class Metric:
    """Names, decimals and unit of a metric."""

    title: str
    short: str
    decimals: int
    unit: str = ""
    lower_is_better: bool = False

    def format(self, value: float) -> str:
        """Return a value with its unit.

        Example:
            >>> METRICS["clean"].format(97.409)
            '97.41 %'
        """
        return f"{value:.{self.decimals}f}{self.unit}"


FAST = ", fast"  # ends the name of a row that is scored with fast=True
TIME_OF = ", time of "  # in the name of a row that is trained for as long as another one
CONTROLS = ("average of ", "easiest of ")  # rows that show whether choosing the worst copy is the cause
CERTIFIED_RADII = (0.25, 0.5, 1.0)
CORRUPTED = ("noise", "blur", "contrast", "jpeg", "occlusion")
METRICS = {
    "clean": Metric("accuracy, clean [%]", "clean", 2, " %"),
    "worst": Metric("accuracy, worst of 20 copies [%]", "worst of 20", 2, " %"),
    "attacked": Metric("accuracy under PGD [%]", "PGD", 2, " %"),
    "gradient": Metric("input-gradient norm", "gradient", 3, lower_is_better=True),
    "corrupted": Metric("accuracy, corrupted images [%]", "corrupted", 2, " %"),
    **{f"corrupted_{kind}": Metric(f"accuracy, {kind} [%]", kind, 2, " %") for kind in CORRUPTED},
    "nll": Metric("negative log-likelihood", "NLL", 3, lower_is_better=True),
    "ece": Metric("expected calibration error", "ECE", 3, lower_is_better=True),
    "radius": Metric("average certified radius", "certified radius", 3),
    **{
        f"certified_{radius:g}": Metric(f"certified at radius {radius:g} [%]", f"certified at {radius:g}", 2, " %")
        for radius in CERTIFIED_RADII
    },
    "test_perplexity": Metric("test perplexity", "perplexity", 2, lower_is_better=True),
    "test_dynamic_perplexity": Metric("test perplexity, dynamic", "dynamic perplexity", 2, lower_is_better=True),
    "seconds": Metric("seconds of training", "time", 1, " s"),
}


def summary(runs: Runs, *, paired: bool) -> dict[str, dict[str, dict[str, Any]]]:
    """Return mean, standard deviation and difference from the baseline, by metric and row.

    Args:
        runs: Metrics per row and seed. The first row is the baseline.
        paired: Whether a seed selects the training images, as in `statistics.difference`.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    baseline = next(iter(runs))
    gains = {name: gain(results, runs[baseline], paired=paired) for name, results in runs.items() if name != baseline}
    for metric in METRICS:
        if any(metric not in run for results in runs.values() for run in results):
            continue
        for name, results in runs.items():
            if ours := estimate([run[metric] for run in results]):
                row: dict[str, Any] = {"mean": ours.mean, "std": ours.std} | gains.get(name, {}).get(metric, {})
                table.setdefault(metric, {})[name] = row
    return table


def is_maxup(name: str) -> bool:
    """Whether a row is trained with MaxUp and m > 1.

    Example:
        >>> [name for name in ("m = 1", "m = 4", "m = 4, fast", "m = 1, time of m = 4") if is_maxup(name)]
        ['m = 4', 'm = 4, fast']
    """
    return re.fullmatch(rf"m = \d+({FAST})?", name) is not None and name != "m = 1"


def controls(runs: Runs, *, paired: bool) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Return the difference between rows with as many copies: MaxUp minus each control, and fast minus exact scoring.

    Example:
        >>> same = [{"clean": 90.0}] * 3
        >>> list(controls({"m = 1": same, "m = 4": same, "average of 4": same, "m = 4, fast": same}, paired=True))
        [('m = 4', 'average of 4'), ('m = 4, fast', 'm = 4')]
    """
    pairs = [(f"m = {name.removeprefix(kind)}", name) for kind in CONTROLS for name in runs if name.startswith(kind)]
    pairs += [(name, name.removesuffix(FAST)) for name in runs if is_maxup(name) and name.endswith(FAST)]
    return {(ours, name): gain(runs[ours], runs[name], paired=paired) for ours, name in pairs if ours in runs}


def gain(ours: list[dict[str, float]], baseline: list[dict[str, float]], *, paired: bool) -> dict[str, dict[str, Any]]:
    """Return the difference between two rows with its 95 % interval, by metric.

    Args:
        ours: Metrics per seed.
        baseline: Metrics of the same seeds.
        paired: Whether a seed selects the training images, as in `statistics.difference`.
    """
    values = [[{i: run[m] for i, run in enumerate(row) if m in run} for m in METRICS] for row in (ours, baseline)]
    differences = {m: difference(a, b, paired=paired) for m, a, b in zip(METRICS, *values, strict=True)}
    return {m: {"difference": d.mean, "low": d.low, "high": d.high} for m, d in differences.items() if d}

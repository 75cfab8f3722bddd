"""Metrics of certificates: certified accuracy at a radius, the average radius, the fraction of abstentions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from maxup.lab.certify.tsv import Row
from maxup.smoothing.bounds import lower_bound, upper_bound

RADII = [0.25 * k for k in range(1, 12)]  # as in the paper's table


@dataclass(frozen=True)
class Proportion:
    """A fraction of n images with its 95 % confidence interval (Clopper-Pearson)."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def error(self) -> float:
        """Standard error."""
        return math.sqrt(self.mean * (1 - self.mean) / self.n)


def certified_accuracy(rows: Sequence[Row], radius: float) -> Proportion:
    """Return the fraction of images whose prediction is correct and certified at a radius."""
    k, n = sum(row.certified(radius) for row in rows), len(rows)
    return Proportion(k / n, lower_bound(k, n, 0.025), upper_bound(k, n, 0.025), n)


def average_radius(rows: Sequence[Row]) -> float:
    """Return the average certified radius (Zhai et al., 2020). Wrong predictions and abstentions count as 0."""
    return math.fsum(row.radius for row in rows if row.correct) / len(rows)


def abstained(rows: Sequence[Row]) -> float:
    """Return the fraction of images on which the classifier abstains."""
    return sum(row.predict < 0 for row in rows) / len(rows)


def metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Return the metrics that go into run.json, such as certified_accuracy_0.5, as fractions in [0, 1]."""
    accuracies = {f"certified_accuracy_{radius}": certified_accuracy(rows, radius).mean for radius in [0.0, *RADII]}
    return accuracies | {"average_certified_radius": average_radius(rows), "certified_abstained": abstained(rows)}

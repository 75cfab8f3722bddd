"""Metrics of certificates: certified accuracy at a radius, the best model at each radius, the average radius."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maxup.lab.certify.tsv import Row
from maxup.smoothing.bounds import lower_bound, upper_bound

RADII = [0.25 * k for k in range(1, 12)]  # as in the paper's table


@dataclass(frozen=True)
class Share:
    """A fraction of n images with its 95 % confidence interval (Clopper-Pearson)."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def error(self) -> float:
        """Standard error."""
        return math.sqrt(self.mean * (1 - self.mean) / self.n)


def certified_accuracy(rows: Sequence[Row], radius: float) -> Share:
    """Return the fraction of images whose prediction is correct and certified at a radius.

    Example:
        >>> rows = [Row(i, 0, 0, 0.1 * i, True, "") for i in range(10)]
        >>> certified_accuracy(rows, 0.5).mean, certified_accuracy(rows, 0.0).mean
        (0.5, 1.0)
    """
    k, n = sum(row.certified(radius) for row in rows), len(rows)
    return Share(k / n, lower_bound(k, n, 0.025), upper_bound(k, n, 0.025), n)


def average_radius(rows: Sequence[Row]) -> float:
    """Return the average certified radius (Zhai et al., 2020). Wrong predictions and abstentions count as 0."""
    return math.fsum(row.radius for row in rows if row.correct) / len(rows)


def abstained(rows: Sequence[Row]) -> float:
    """Return the fraction of images on which the classifier abstains."""
    return sum(row.predict < 0 for row in rows) / len(rows)


def envelope(models: Mapping[str, Sequence[Row]], radii: Sequence[float] = RADII) -> dict[float, tuple[str, Share]]:
    """Return the best model at each radius and its certified accuracy, as the paper reports them.

    The result is optimistic: the best model is selected on the images that it is reported on. The intervals do not
    account for this selection.

    Example:
        >>> near = [Row(i, 0, 0, 0.3, True, "") for i in range(10)]
        >>> far = [Row(i, 0, 0, 0.9 * (i < 4), i < 4, "") for i in range(10)]
        >>> best = envelope({"near": near, "far": far}, [0.25, 0.5])
        >>> [(radius, name, share.mean) for radius, (name, share) in best.items()]
        [(0.25, 'near', 1.0), (0.5, 'far', 0.4)]
    """
    best = {}
    for radius in radii:
        shares = {name: certified_accuracy(rows, radius) for name, rows in models.items()}
        name = max(shares, key=lambda name: shares[name].mean)
        best[radius] = name, shares[name]
    return best


def metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Return the metrics that go into run.json, such as certified_accuracy_0.5, as fractions in [0, 1].

    Example:
        >>> metrics([Row(0, 1, 1, 0.6, True, "")])["certified_accuracy_0.5"]
        1.0
    """
    accuracies = {f"certified_accuracy_{radius}": certified_accuracy(rows, radius).mean for radius in [0.0, *RADII]}
    return accuracies | {"average_certified_radius": average_radius(rows), "certified_abstained": abstained(rows)}

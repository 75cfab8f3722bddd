"""Mean and deviation over seeds, and the paired difference of two methods with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A quantity measured with n seeds."""

    mean: float
    std: float | None
    """Over the seeds, with n - 1; None for one seed."""
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean difference over the seeds that two methods have in common."""

    mean: float
    low: float | None
    """The interval's ends; None for one seed."""
    high: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and standard deviation, or None of nothing.

    Example:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, std=1.0, n=3)
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Estimate(mean, _deviation(values, mean), len(values))


def paired(ours: Mapping[int, float], twin: Mapping[int, float], *, level: float = 0.95) -> Difference | None:
    """Mean of ours - twin over common seeds with Student's interval, or None where they have no seed in common.

    Args:
        ours: Value by seed.
        twin: Value by seed.
        level: Confidence of the interval.

    Example:
        >>> paired({0: 2.0, 1: 3.0, 2: 9.0}, {0: 1.0, 1: 2.0})
        Difference(mean=1.0, low=1.0, high=1.0, n=2)
    """
    found = estimate([ours[seed] - twin[seed] for seed in sorted(ours.keys() & twin.keys())])
    if found is None or found.std is None:
        return None if found is None else Difference(found.mean, None, None, found.n)
    from scipy.special import stdtrit

    margin = float(stdtrit(found.n - 1, (1 + level) / 2)) * found.std / math.sqrt(found.n)
    return Difference(found.mean, found.mean - margin, found.mean + margin, found.n)


def _deviation(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))

"""Mean and deviation over seeds, and the paired difference of two methods with its interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A quantity measured with n seeds."""

    mean: float
    std: float | None
    """Over the seeds, with n - 1; None for one seed, or where a value is infinite."""
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean difference over the seeds (or images) that two methods have in common."""

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
    mean = statistics.mean(values)  # exact: numbers may be huge, as a perplexity can
    known = len(values) > 1 and math.isfinite(mean)
    return Estimate(mean, statistics.stdev(values) if known else None, len(values))


def paired(ours: Mapping[int, float], twin: Mapping[int, float], *, level: float = 0.95) -> Difference | None:
    """Mean of ours - twin over common seeds with Student's interval.

    None where they have no seed in common, or a value is infinite.

    Args:
        ours: Value by seed.
        twin: Value by seed.
        level: Confidence of the interval.

    Example:
        >>> paired({0: 2.0, 1: 3.0, 2: 9.0}, {0: 1.0, 1: 2.0})
        Difference(mean=1.0, low=1.0, high=1.0, n=2)
    """
    found = estimate([ours[seed] - twin[seed] for seed in sorted(ours.keys() & twin.keys())])
    if found is None or not math.isfinite(found.mean):
        return None
    if found.std is None:
        return Difference(found.mean, None, None, found.n)
    from scipy.special import stdtrit

    margin = float(stdtrit(found.n - 1, (1 + level) / 2)) * found.std / math.sqrt(found.n)
    return Difference(found.mean, found.mean - margin, found.mean + margin, found.n)

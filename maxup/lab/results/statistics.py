"""Mean and standard deviation over seeds, and the difference of two methods with its confidence interval.

There is no interval for fewer than 3 values per side, and none if the values do not vary: an interval of width zero
would claim too much certainty.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

FEWEST = 3  # values per side that an interval needs


@dataclass(frozen=True)
class Estimate:
    """A quantity measured with n seeds."""

    mean: float
    std: float | None
    """Sample standard deviation (n - 1). None for one seed, or if a value is infinite."""
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over seeds or images."""

    mean: float
    low: float | None
    """Ends of the interval. None for fewer than 3 values, or if the values do not vary."""
    high: float | None
    n: int
    """Number of pairs; for unpaired values, of values on the smaller side."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean and standard deviation, or None if there are no values."""
    if not values:
        return None
    mean = statistics.mean(values)  # exact even for huge perplexities
    known = len(values) > 1 and math.isfinite(mean)
    return Estimate(mean, statistics.stdev(values) if known else None, len(values))


def difference(ours: Mapping[int, float], baseline: Mapping[int, float], *, paired: bool) -> Difference | None:
    """Return the difference between a method and its baseline with a 95 % interval, by `paired_t` or `welch`.

    Args:
        ours: Value per seed.
        baseline: Value per seed.
        paired: Whether a seed selects the training images, so that both methods share them. Otherwise runs with the
            same seed are not pairs: a shared seed does not make two runs comparable.
    """
    return paired_t(ours, baseline) if paired else welch(ours.values(), baseline.values())


def paired_t(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Return the mean of ours - baseline over common seeds or images, with Student's 95 % interval.

    Use it for values measured on the same images, not for runs that only share a seed. Returns None if there are no
    common keys, or if a value is infinite.

    Args:
        ours: Value per seed or image.
        baseline: Value per seed or image.
    """
    found = estimate([ours[seed] - baseline[seed] for seed in sorted(ours.keys() & baseline.keys())])
    if found is None or not math.isfinite(found.mean):
        return None
    if found.n < FEWEST or not found.std:
        return Difference(found.mean, None, None, found.n)
    return _difference(found.mean, found.std / math.sqrt(found.n), found.n - 1, found.n)


def welch(ours: Collection[float], baseline: Collection[float]) -> Difference | None:
    """Return mean(ours) - mean(baseline) with Welch's 95 % interval, for independent samples with unequal variances.

    Returns None if one side is empty, or if a value is infinite.

    Args:
        ours: Values of one method.
        baseline: Values of the other.
    """
    sides = [side for values in (ours, baseline) if (side := estimate(list(values)))]
    if len(sides) < 2 or not math.isfinite(mean := sides[0].mean - sides[1].mean):
        return None
    n = min(side.n for side in sides)
    errors = [(side.std or 0.0) / math.sqrt(side.n) for side in sides]
    error = math.hypot(*errors)
    if n < FEWEST or not error:
        return Difference(mean, None, None, n)
    # Welch-Satterthwaite with relative variances, because squares of huge perplexities would overflow.
    freedom = 1 / sum((e / error) ** 4 / (side.n - 1) for e, side in zip(errors, sides, strict=True))
    return _difference(mean, error, freedom, n)


def _difference(mean: float, error: float, freedom: float, n: int) -> Difference:
    from scipy.special import stdtrit

    margin = float(stdtrit(freedom, 0.975)) * error
    return Difference(mean, mean - margin, mean + margin, n)

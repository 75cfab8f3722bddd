"""Statistics of class counts: Clopper-Pearson bounds, the certified radius, and the test behind a prediction.

A smoothed classifier returns the most probable class for x + N(0, sigma^2 I). If that class has probability above p, no
perturbation with an l2 norm below sigma * Phi^-1(p) changes the prediction (Cohen, Rosenfeld and Kolter, 2019).
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from maxup.smoothing.binomial import invert_tail, log_tail

ABSTAIN = -1


def lower_bound(k: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound of a probability, given k successes in n trials.

    The bound is too high with probability at most alpha.

    Example:
        >>> lower_bound(0, 10, 0.05), round(lower_bound(10, 10, 0.05), 6), round(0.05 ** (1 / 10), 6)
        (0.0, 0.741134, 0.741134)
    """
    _check(k, n, alpha)
    return invert_tail(k, n, alpha) if k else 0.0


def upper_bound(k: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound of a probability, given k successes in n trials.

    Example:
        >>> upper_bound(10, 10, 0.05), round(upper_bound(0, 10, 0.05), 6)
        (1.0, 0.258866)
    """
    _check(k, n, alpha)
    return 1.0 - lower_bound(n - k, n, alpha)


def radius_of(p: float, sigma: float) -> float:
    """Return sigma * Phi^-1(p), the certified l2 radius of a class with probability p. Negative if p < 0.5.

    Example:
        >>> radius_of(0.5, sigma=0.25), round(radius_of(0.841345, sigma=0.25), 5)
        (0.0, 0.25)
    """
    if p in (0, 1):
        return math.inf if p else -math.inf
    return sigma * NormalDist().inv_cdf(p)


def probability_of(radius: float, sigma: float) -> float:
    """Return Phi(radius / sigma), the probability that a radius requires. The inverse of `radius_of`.

    Example:
        >>> round(radius_of(probability_of(0.3, 0.5), 0.5), 12)
        0.3
    """
    return math.erfc(-radius / sigma / math.sqrt(2)) / 2


def p_value(k: int, n: int) -> float:
    """Return the p-value of the two-sided binomial test of k successes in n trials against a probability of 1/2.

    Example:
        >>> p_value(5, 10), round(p_value(10, 10) * 2**10)
        (1.0, 2)
    """
    return min(1.0, 2 * math.exp(log_tail(max(k, n - k), n, 0.5)))


def predicted(counts: Sequence[int], alpha: float) -> int:
    """Return the most frequent class, or ABSTAIN if it does not beat the second at level alpha (Hung and Fithian).

    Example:
        >>> predicted([90, 10, 0], alpha=0.001), predicted([6, 4, 0], alpha=0.001)
        (0, -1)
    """
    first, second = sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:2]
    total = counts[first] + counts[second]
    return first if total and p_value(counts[first], total) <= alpha else ABSTAIN


def _check(k: int, n: int, alpha: float) -> None:
    if not 0 <= k <= n or n < 1 or not 0 < alpha < 1:
        raise ValueError(f"k={k}, n={n}, alpha={alpha}: a bound needs 0 <= k <= n, n >= 1 and alpha between 0 and 1")

"""What counts say: Clopper-Pearson bounds, the certified radius, and the test by which a prediction is made.

A smoothed classifier answers with the class that is most probable for x + N(0, sigma^2 I). If that class has a
probability above p, no perturbation shorter than sigma * Phi^-1(p) changes the answer (Cohen, Rosenfeld and Kolter,
2019).
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from maxup.smoothing.binomial import invert_tail, log_tail

ABSTAIN = -1


def lower_bound(k: int, n: int, alpha: float) -> float:
    """The largest p that k successes of n refute at level alpha: one-sided Clopper-Pearson.

    Example:
        >>> lower_bound(0, 10, 0.05), round(lower_bound(10, 10, 0.05), 6), round(0.05 ** (1 / 10), 6)
        (0.0, 0.741134, 0.741134)
    """
    _check(k, n, alpha)
    return invert_tail(k, n, alpha) if k else 0.0


def upper_bound(k: int, n: int, alpha: float) -> float:
    """The smallest p above which k successes of n are too few at level alpha.

    Example:
        >>> upper_bound(10, 10, 0.05), round(upper_bound(0, 10, 0.05), 6)
        (1.0, 0.258866)
    """
    _check(k, n, alpha)
    return 1.0 - lower_bound(n - k, n, alpha)


def radius_of(p: float, sigma: float) -> float:
    """sigma * Phi^-1(p), the l2 radius within which a class of probability p stays on top; negative below one half.

    Example:
        >>> radius_of(0.5, sigma=0.25), round(radius_of(0.841345, sigma=0.25), 5)
        (0.0, 0.25)
    """
    if p in (0, 1):
        return math.inf if p else -math.inf
    return sigma * NormalDist().inv_cdf(p)


def probability_of(radius: float, sigma: float) -> float:
    """Phi(radius / sigma), the probability that a radius needs: the inverse of `radius_of`.

    Example:
        >>> round(radius_of(probability_of(0.3, 0.5), 0.5), 12)
        0.3
    """
    return math.erfc(-radius / sigma / math.sqrt(2)) / 2


def p_value(k: int, n: int) -> float:
    """Of the two-sided test whether k of n tosses come from a fair coin.

    Example:
        >>> p_value(5, 10), round(p_value(10, 10) * 2**10)
        (1.0, 2)
    """
    return min(1.0, 2 * math.exp(log_tail(max(k, n - k), n, 0.5)))


def predicted(counts: Sequence[int], alpha: float) -> int:
    """The most frequent class, or ABSTAIN where it does not beat the second one at level alpha (Hung and Fithian).

    Example:
        >>> predicted([90, 10, 0], alpha=0.001), predicted([6, 4, 0], alpha=0.001)
        (0, -1)
    """
    first, second = sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:2]
    both = counts[first] + counts[second]
    return first if both and p_value(counts[first], both) <= alpha else ABSTAIN


def _check(k: int, n: int, alpha: float) -> None:
    if not 0 <= k <= n or n < 1 or not 0 < alpha < 1:
        raise ValueError(f"k={k}, n={n}, alpha={alpha}: a bound wants 0 <= k <= n, n of 1 or more and alpha in (0, 1)")

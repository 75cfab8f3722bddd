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

    The bound exceeds the true probability with probability at most alpha.
    """
    _check(k, n, alpha)
    return invert_tail(k, n, alpha) if k else 0.0


def upper_bound(k: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound of a probability, given k successes in n trials."""
    _check(k, n, alpha)
    return 1.0 - lower_bound(n - k, n, alpha)


def certified_radius(p: float, sigma: float) -> float:
    """Return sigma * Phi^-1(p), the certified l2 radius of a class with probability p. Negative if p < 0.5."""
    if p in (0, 1):
        return math.inf if p else -math.inf
    return sigma * NormalDist().inv_cdf(p)


def required_probability(radius: float, sigma: float) -> float:
    """Return Phi(radius / sigma), the probability that a radius requires. The inverse of `certified_radius`."""
    return math.erfc(-radius / sigma / math.sqrt(2)) / 2


def p_value(k: int, n: int) -> float:
    """Return the p-value of the two-sided binomial test of k successes in n trials against a probability of 1/2."""
    return min(1.0, 2 * math.exp(log_tail(max(k, n - k), n, 0.5)))


def predicted(counts: Sequence[int], alpha: float) -> int:
    """Return the most frequent class, or ABSTAIN if it does not beat the second at level alpha (Hung and Fithian)."""
    first, second = sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:2]
    total = counts[first] + counts[second]
    return first if total and p_value(counts[first], total) <= alpha else ABSTAIN


def _check(k: int, n: int, alpha: float) -> None:
    if not 0 <= k <= n or n < 1 or not 1e-300 <= alpha <= 1 - 1e-9:
        raise ValueError(
            f"k={k}, n={n}, alpha={alpha}: a bound needs 0 <= k <= n, n >= 1 and 1e-300 <= alpha <= 1 - 1e-9"
        )

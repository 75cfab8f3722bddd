"""The binomial tail P(Bin(n, p) >= k) and its inverse in p, to about 12 digits, without scipy."""

import math


def log_tail(k: int, n: int, p: float) -> float:
    """Return log P(Bin(n, p) >= k) for 0 < p < 1."""
    if k <= n * p:  # the complement is the smaller sum
        return math.log1p(-math.exp(log_tail(n - k + 1, n, 1 - p))) if k else 0.0
    return _log_pmf(k, n, p) + math.log(_tail_over_pmf(k, n, p))


def invert_tail(k: int, n: int, alpha: float) -> float:
    """Return the p with P(Bin(n, p) >= k) = alpha: the alpha quantile of Beta(k, n - k + 1), for 1 <= k <= n.

    Newton's method on the log of the tail as a function of log p. That function is concave, so the iterates approach
    the solution from below.
    """
    if k == n:
        return alpha ** (1 / n)
    p = k / n
    for _ in range(100):
        ratio = _tail_over_pmf(k, n, p)
        step = (_log_pmf(k, n, p) + math.log(ratio) - math.log(alpha)) * ratio / k  # d log tail / d log p = k / ratio
        p *= math.exp(-step)
        if abs(step) < 1e-15:
            break
    return p


def _tail_over_pmf(k: int, n: int, p: float) -> float:
    """Return P(Bin >= k) / P(Bin = k): the sum of ratios of successive terms, up to where they vanish."""
    import numpy  # here, because listing recipes imports this module and must be fast

    mean, deviation = n * p, math.sqrt(n * p * (1 - p))
    last = min(n, math.ceil(max(k, mean) + 12 * deviation) + 60)
    j = numpy.arange(k, last)
    return 1.0 + float(numpy.cumprod((n - j) / (j + 1) * (p / (1 - p))).sum())


def _log_pmf(k: int, n: int, p: float) -> float:
    """Return log P(Bin(n, p) = k) by Loader's saddle-point expansion, which does not cancel for large n (k >= 1)."""
    if k == n:
        return n * math.log(p)
    excess = k - n * p
    deviance = k * math.log1p(excess / (n * p)) + (n - k) * math.log1p(-excess / (n * (1 - p)))
    stirling = _stirling_error(n) - _stirling_error(k) - _stirling_error(n - k)
    return stirling - deviance + 0.5 * math.log(n / (2 * math.pi * k * (n - k)))


def _stirling_error(n: int) -> float:
    """Return log(n!) minus Stirling's approximation of it."""
    if n < 16:
        return math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2 * math.pi)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / n**2) / n**2) / n**2) / n**2) / n

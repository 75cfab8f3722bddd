"""Bounds against scipy's exact interval, which uses root finding, and against the definition in high precision."""

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from maxup.smoothing.bounds import (
    ABSTAIN,
    certified_radius,
    lower_bound,
    p_value,
    predicted,
    required_probability,
    upper_bound,
)

COUNTS = [(0, 1), (1, 1), (0, 100), (100, 100), (1, 100), (50, 100), (99, 100), (500, 1000), (99_990, 100_000),
          (100_000, 100_000), (0, 100_000), (50_123, 100_000)]  # fmt: skip


@pytest.mark.parametrize("alpha", [0.05, 0.001, 1e-6])
@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_bounds_match_the_exact_interval_of_scipy(k, n, alpha):
    low = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - alpha, "exact").low
    high = stats.binomtest(k, n, alternative="less").proportion_ci(1 - alpha, "exact").high
    assert lower_bound(k, n, alpha) == pytest.approx(low, abs=1e-10)
    assert upper_bound(k, n, alpha) == pytest.approx(high, abs=1e-10)


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize(("k", "n"), [(1, 7), (60, 100), (100, 100), (990, 1000)])
def test_at_the_bound_the_tail_is_alpha(k, n, alpha):
    """The definition with 50 digits: P(K >= k) = alpha if p is the lower bound."""
    with mpmath.workdps(50):
        p = mpmath.mpf(lower_bound(k, n, alpha))
        tail = mpmath.fsum(mpmath.binomial(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
        assert abs(tail - alpha) < 1e-10


@pytest.mark.parametrize("n", [1, 100, 100_000])
def test_no_and_all_successes(n):
    assert (lower_bound(0, n, 0.001), upper_bound(n, n, 0.001)) == (0.0, 1.0)
    assert lower_bound(n, n, 0.001) == pytest.approx(0.001 ** (1 / n), abs=1e-12)
    assert certified_radius(lower_bound(n, n, 0.001), 0.5) < float("inf")


@given(st.integers(1, 500), st.data(), st.floats(1e-6, 0.4))
@settings(max_examples=60)
def test_bounds_bracket_the_proportion_and_are_symmetric(n, data, alpha):
    k = data.draw(st.integers(0, n))
    assert lower_bound(k, n, alpha) <= k / n <= upper_bound(k, n, alpha)
    assert lower_bound(k, n, alpha) == pytest.approx(1 - upper_bound(n - k, n, alpha), abs=1e-12)


@given(st.floats(0, 3), st.floats(0.1, 1))
@settings(max_examples=30)
def test_radius_and_probability_are_inverses(radius, sigma):
    p = required_probability(radius, sigma)
    assert p == pytest.approx(stats.norm.cdf(radius / sigma), abs=1e-14)
    if p < 1 - 1e-9:
        assert certified_radius(p, sigma) == pytest.approx(radius, abs=1e-5)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (5, 10), (6, 10), (4, 10), (90, 100), (50_300, 100_000)])
def test_p_value_matches_scipy(k, n):
    assert p_value(k, n) == pytest.approx(stats.binomtest(k, n, 0.5).pvalue, rel=1e-9)


def test_predictions_abstain_if_two_classes_are_close():
    assert predicted([51, 49, 0], 0.05) == ABSTAIN
    assert predicted([0, 20, 80], 0.001) == 2
    assert predicted([0, 10, 0], 0.01) == 1
    assert predicted([10, 10, 0], 0.999) == ABSTAIN
    assert predicted([0, 0], 0.5) == ABSTAIN


@pytest.mark.parametrize(("k", "n", "alpha"), [(-1, 10, 0.1), (11, 10, 0.1), (0, 0, 0.1), (1, 10, 0.0), (1, 10, 1.0)])
def test_invalid_input_is_refused(k, n, alpha):
    with pytest.raises(ValueError, match="a bound needs"):
        lower_bound(k, n, alpha)


@pytest.mark.parametrize("alpha", [0.0, 1e-308, 1 - 1e-12, 1.0])
def test_levels_that_floats_cannot_resolve_are_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        lower_bound(50, 100, alpha)

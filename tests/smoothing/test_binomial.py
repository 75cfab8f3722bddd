"""The binomial tail and its inverse against exact sums with 50 digits, and against scipy."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from maxup.smoothing.binomial import invert_tail, log_tail


def exact_tail(k, n, p):
    p = mpmath.mpf(p)
    return mpmath.fsum(mpmath.binomial(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@settings(max_examples=60)
@given(st.integers(1, 200), st.floats(1e-6, 1 - 1e-6), st.data())
def test_the_tail_is_the_sum(n, p, data):
    k = data.draw(st.integers(0, n))
    with mpmath.workdps(50):
        assert log_tail(k, n, p) == pytest.approx(float(mpmath.log(exact_tail(k, n, p))), rel=1e-12, abs=1e-12)


@settings(max_examples=60)
@given(st.integers(1, 200), st.floats(1e-12, 1 - 1e-6), st.data())
def test_the_inverse_has_the_tail_alpha(n, alpha, data):
    k = data.draw(st.integers(1, n))
    with mpmath.workdps(50):
        assert abs(exact_tail(k, n, invert_tail(k, n, alpha)) / alpha - 1) < 1e-11


@settings(max_examples=200)
@given(st.integers(1, 10**6), st.floats(1e-12, 0.9), st.data())
def test_the_inverse_is_scipy_s(n, alpha, data):
    k = data.draw(st.integers(1, n))
    assert invert_tail(k, n, alpha) == pytest.approx(special.betaincinv(k, n - k + 1, alpha), abs=1e-12)


@pytest.mark.parametrize(("k", "n"), [(278_653, 557_055), (50_300, 100_000), (99_990, 100_000)])
def test_large_n(k, n):
    """By recursion from one term with 50 digits: scipy's bdtr is off by 3e-10 for the first."""
    with mpmath.workdps(50):
        term, total = mpmath.binomial(n, k) * mpmath.mpf(2) ** -n, mpmath.mpf(0)
        for j in range(k, min(n, k + 20_000) + 1):
            total += term
            term *= mpmath.mpf(n - j) / (j + 1)
        assert math.exp(log_tail(k, n, 0.5)) == pytest.approx(float(total), rel=1e-12)

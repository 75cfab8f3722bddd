"""Mean, standard deviation and both intervals, against scipy."""

import math
import random

import pytest
from scipy import stats

from maxup.lab.results.statistics import Estimate, estimate, paired_t, welch


@pytest.mark.parametrize("n", [3, 5, 40])
def test_the_paired_interval_is_that_of_scipy(n):
    rng = random.Random(n)
    ours, baseline = ({seed: rng.gauss(95, 0.3) for seed in range(n)} for _ in range(2))
    found = paired_t(ours | {99: 0.0}, baseline | {98: 0.0})  # seeds of one only do not count
    expected = stats.ttest_rel(list(ours.values()), list(baseline.values())).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.n == n


@pytest.mark.parametrize(("n", "other"), [(3, 3), (3, 8), (40, 5)])
def test_the_interval_of_welch_is_that_of_scipy(n, other):
    rng = random.Random(n)
    ours, baseline = [rng.gauss(95, 0.3) for _ in range(n)], [rng.gauss(94, 1.2) for _ in range(other)]
    found = welch(ours, baseline)
    expected = stats.ttest_ind(ours, baseline, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.mean == pytest.approx(stats.tmean(ours) - stats.tmean(baseline))
    assert found.n == min(n, other)


def test_welch_with_one_constant_side_is_the_closed_form():
    """The constant side adds no variance and no degree of freedom; scipy warns about such data."""
    baseline = [94.0, 95.5, 94.7, 94.1]
    found = welch([95.1, 95.1, 95.1], baseline)
    margin = stats.t.ppf(0.975, df=3) * stats.tstd(baseline) / 2
    mean = 95.1 - stats.tmean(baseline)
    assert (found.low, found.high) == pytest.approx((mean - margin, mean + margin))


def test_no_interval_from_fewer_than_three_values():
    for found in (paired_t({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.5}), welch([2.0, 3.0], [1.0, 1.5, 1.25])):
        assert (found.mean, found.low, found.high, found.n) == (1.25, None, None, 2)


def test_no_interval_where_nothing_varies():
    """0.1 + 0.2 and the like are not rounded into a tiny spread: the deviation is exact."""
    for found in (
        paired_t({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0}),
        welch([95.1, 95.1, 95.1], [94.1, 94.1, 94.1, 94.1]),
    ):
        assert (found.low, found.high, found.n) == (None, None, 3)
        assert found.mean == pytest.approx(1.0)


def test_mean_and_deviation_are_those_of_scipy():
    values = [94.9, 95.2, 95.05, 94.1]
    found = estimate(values)
    assert (found.mean, found.std) == pytest.approx((stats.tmean(values), stats.tstd(values)))


def test_few_seeds_claim_little():
    assert estimate([]) is None
    assert estimate([1.0]).std is None
    assert paired_t({0: 1.0}, {1: 1.0}) is None
    found = paired_t({0: 1.0}, {0: 0.5, 1: 1.0})
    assert (found.mean, found.low, found.high, found.n) == (0.5, None, None, 1)
    assert welch([1.0], []) is None
    assert welch([2.0], [1.0, 2.0, 0.0]).mean == 1.0


def test_pairing_does_not_depend_on_order():
    assert paired_t({0: 3.0, 1: 5.0}, {1: 1.0, 0: 2.0}) == paired_t({1: 5.0, 0: 3.0}, {0: 2.0, 1: 1.0})


def test_huge_numbers_are_counted_and_infinite_ones_claim_nothing():
    huge = estimate([7e300, 1.0, 1.6e308, 1.6e308])
    assert huge.mean == pytest.approx(0.8e308)
    assert huge.std == pytest.approx(0.8e308 * 2 / math.sqrt(3))
    assert estimate([math.inf, 1.0]) == Estimate(math.inf, None, 2)
    for baseline in ({0: 1.0, 1: 2.0}, {0: math.inf, 1: 2.0}, {0: math.inf, 1: math.inf}):
        assert paired_t({0: math.inf, 1: 1.0}, baseline) is None
        assert welch([math.inf, 1.0], list(baseline.values())) is None
    wide = welch([7e300, 1.0, 1.6e300], [1.0, 2.0, 3.0])  # squares of these overflow
    margin = stats.t.ppf(0.975, df=2) * 1e300 * stats.tstd([7.0, 0.0, 1.6]) / math.sqrt(3)
    assert wide.high - wide.mean == pytest.approx(margin)

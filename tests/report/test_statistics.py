"""Mean, deviation and the paired interval against scipy's own tests."""

import math
import random

import pytest
from scipy import stats

from maxup.report.statistics import Estimate, estimate, paired


@pytest.mark.parametrize("n", [2, 3, 5, 40])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_the_paired_interval_is_that_of_scipy(n, level):
    rng = random.Random(n)
    ours, twin = ({seed: rng.gauss(95, 0.3) for seed in range(n)} for _ in range(2))
    found = paired(ours | {99: 0.0}, twin | {98: 0.0}, level=level)  # seeds of one only do not count
    expected = stats.ttest_rel(list(ours.values()), list(twin.values())).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.n == n


def test_mean_and_deviation_are_those_of_scipy():
    values = [94.9, 95.2, 95.05, 94.1]
    found = estimate(values)
    assert (found.mean, found.std) == pytest.approx((stats.tmean(values), stats.tstd(values)))


def test_few_seeds_claim_little():
    assert estimate([]) is None
    assert estimate([1.0]).std is None
    assert paired({0: 1.0}, {1: 1.0}) is None
    found = paired({0: 1.0}, {0: 0.5, 1: 1.0})
    assert (found.mean, found.low, found.high, found.n) == (0.5, None, None, 1)


def test_pairing_does_not_depend_on_order():
    assert paired({0: 3.0, 1: 5.0}, {1: 1.0, 0: 2.0}) == paired({1: 5.0, 0: 3.0}, {0: 2.0, 1: 1.0})


def test_huge_numbers_are_counted_and_infinite_ones_claim_nothing():
    huge = estimate([7e300, 1.0, 1.6e308, 1.6e308])
    assert huge.mean == pytest.approx(0.8e308)
    assert huge.std == pytest.approx(0.8e308 * 2 / math.sqrt(3))
    assert estimate([math.inf, 1.0]) == Estimate(math.inf, None, 2)
    for twin in ({0: 1.0, 1: 2.0}, {0: math.inf, 1: 2.0}, {0: math.inf, 1: math.inf}):
        assert paired({0: math.inf, 1: 1.0}, twin) is None

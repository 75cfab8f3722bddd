"""Looks spend exactly alpha and stop once the result is decided. test_coverage.py tests the coverage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxup.smoothing.bounds import certified_radius, lower_bound
from maxup.smoothing.sampling import Evidence, max_radius, plan


@given(st.integers(1, 10**6), st.floats(1e-6, 0.5))
@settings(max_examples=100)
def test_looks_grow_to_n_and_spend_alpha(n, alpha):
    looks = plan(n, alpha, early=True)
    counts = [look.n for look in looks]
    assert counts == sorted(set(counts))
    assert counts[-1] == n
    assert sum(look.alpha for look in looks) == pytest.approx(alpha, rel=1e-12)
    assert all(look.alpha > 0 for look in looks)


@given(st.integers(1, 10**5), st.floats(1e-6, 0.4), st.booleans())
@settings(max_examples=100)
def test_max_radius_is_the_radius_if_all_copies_agree(n, alpha, early):
    evidence = Evidence(plan(n, alpha, early=early), 0.5)
    while not evidence.decided:
        evidence.update(evidence.n + evidence.needed)
    assert max_radius(evidence.looks, 0.5) == pytest.approx(max(0.0, evidence.radius), rel=1e-12)


def test_fixed_sampling_is_that_of_cohen_et_al():
    evidence = Evidence(plan(1000, 0.001, early=False), 0.5)
    assert evidence.needed == 1000
    evidence.update(900)
    assert evidence.decided
    assert evidence.needed == 0
    assert evidence.radius == certified_radius(lower_bound(900, 1000, 0.001), 0.5)


def test_an_abstention_is_decided_early():
    evidence = Evidence(plan(100_000, 0.001, early=True), 0.5)
    evidence.update(150)  # of 390
    assert evidence.decided
    assert evidence.n == 390
    assert evidence.p < 0.5


def test_without_radii_a_clear_image_takes_all_samples():
    evidence = Evidence(plan(100_000, 0.001, early=True), 0.5)
    for look in evidence.looks[:-1]:
        evidence.update(look.n)
        assert not evidence.decided


@pytest.mark.parametrize(
    ("radii", "counts", "decided"),
    [
        ([0.25], [390], True),  # reached: 390 of 390
        ([1.4], [273], True),  # 70 %: certainly above one half, and 1.4 is out of reach
        ([0.25], [273], False),  # 70 % may or may not reach 0.25 (69 %)
        ([0.25, 1.4], [390], False),  # 1.4 needs 99.74 %, more than 390 samples can show
        ([0.25, 1.4], [390, 1562], False),
        ([0.25, 1.4], [390, 1562, 6250], True),
    ],
)
def test_radii_are_decided(radii, counts, decided):
    evidence = Evidence(plan(100_000, 0.001, early=True), 0.5, radii)
    for k in counts:
        assert not evidence.decided
        evidence.update(k)
    assert evidence.decided == decided


def test_the_best_bound_so_far_is_kept():
    evidence = Evidence(plan(100_000, 0.001, early=True), 0.5)
    evidence.update(390)
    best = evidence.p
    evidence.update(1000)  # of 1562: worse
    assert evidence.p == best

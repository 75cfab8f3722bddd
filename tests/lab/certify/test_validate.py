"""Invalid headers and rows are rejected with a reason."""

from dataclasses import replace

import pytest

from maxup.lab.certify.tsv import Row
from maxup.lab.certify.validate import SAME, Limits, check_settings
from maxup.smoothing.sampling import plan

ABOUT = {"model": "a" * 64, "images": "b" * 64, "sigma": 0.5, "dtype": "float32", "forward": "eager", "n0": 100,
         "n": 1000, "alpha": 0.001, "sampling": "fixed", "radii": None, "seed": 0, "classes": ["cat", "dog"],
         "answers": [0.5, -1]}  # fmt: skip
ROW = Row(7, 1, 1, 0.5, True, "0:00:01")


@pytest.mark.parametrize("change", [{}, {"sampling": "adaptive", "radii": [0.25, 1]}, {"answers": []}, {"seed": -3}])
def test_valid_settings_pass(change):
    check_settings(ABOUT | change)


@pytest.mark.parametrize("key", SAME)
def test_every_setting_is_required_and_has_a_type(key):
    with pytest.raises(ValueError, match=f"the header is missing {key}"):
        check_settings({name: value for name, value in ABOUT.items() if name != key})
    with pytest.raises(ValueError, match=key):
        check_settings(ABOUT | {key: {"a": 1}})


@pytest.mark.parametrize(
    ("key", "values"),
    {
        "sigma": [0, -1, True, "0.5", 10**400, float("nan"), float("inf")],
        "n": [0, -5, 99, 1e3, True, 10**400, None],
        "n0": [0, 1001, "x"],
        "alpha": [0, 1, -0.001, 2, "x", float("nan")],
        "sampling": ["x", None],
        "radii": [[], [-1], "x", [0.5]],
        "classes": [[], ["a"], ["a", 1], "cat, dog", None],
        "answers": ["x", [None]],
    }.items(),
)
def test_invalid_settings_are_named(key, values):
    for value in values:
        with pytest.raises(ValueError, match=key) as error:
            check_settings(ABOUT | {key: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"idx": -1}, "idx=-1 is negative"),
        ({"label": 2}, "label=2, but there are 2 classes"),
        ({"label": -1}, "label=-1, but"),
        ({"predict": 2}, "predict=2, but"),
        ({"predict": -2}, "predict=-2, but"),
        ({"correct": False}, "correct=0 contradicts label=1 and predict=1"),
        ({"predict": 0}, "correct=1 contradicts"),
        ({"predict": -1, "correct": False}, "it abstains, but radius=0.5"),
        ({"radius": 1.24}, "radius=1.24, but n, alpha and sigma allow at most 1.231631"),
        ({"radius": -0.1}, "radius=-0.1, but"),
        ({"radius": float("nan")}, "radius=nan, but"),
        ({"samples": 1000}, "samples=1000 is not a possible stopping point"),
    ],
)
def test_invalid_rows_have_a_reason(change, why):
    limits = Limits.from_header(ABOUT)
    assert limits.problem(ROW) is None
    assert str(limits.problem(replace(ROW, **change))).startswith(why)


def test_the_largest_radius_is_valid():
    """alpha^(1/n) is the bound if all n copies have one class."""
    from scipy.stats import norm

    largest = 0.5 * norm.ppf(0.001 ** (1 / 1000))
    assert Limits.from_header(ABOUT).reach == pytest.approx(largest)
    assert Limits.from_header(ABOUT).problem(replace(ROW, radius=largest)) is None
    assert Limits.from_header(ABOUT).problem(replace(ROW, radius=largest + 1e-5))


def test_samples_must_be_a_possible_stopping_point():
    limits = Limits.from_header(ABOUT | {"sampling": "adaptive", "n": 100_000})
    for look in plan(100_000, 0.001, early=True):
        assert limits.problem(replace(ROW, samples=look.n)) is None
    for samples in (None, 0, 100, 100_001):
        assert str(limits.problem(replace(ROW, samples=samples))).startswith(f"samples={samples} is not")

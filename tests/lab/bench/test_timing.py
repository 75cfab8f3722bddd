"""Variants alternate, warm-up rounds do not count, and the floor is that of the equation."""

import pytest

from maxup.lab.bench.timing import WARMUP, floor, interleaved


def test_variants_alternate_and_warm_up():
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu", calls=2)
    assert "".join(calls) == "aabb" * (3 + WARMUP)
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(("m", "ratio"), [(2, 1.5), (4, 2.0), (8, 3.0)])
def test_floor(m, ratio):
    assert floor(m, forward=0.01, standard=0.04) == ratio

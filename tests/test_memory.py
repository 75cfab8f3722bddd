"""Memory is flat in m, by counting every byte."""

import pytest

from benchmarks.memory import measure


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_peak_memory_does_not_grow_with_m():
    peaks = measure(4, [2, 4, 64], "cpu")
    assert peaks["maxup"][64] < 1.1 * peaks["maxup"][2]
    assert peaks["average"][4] > 1.5 * peaks["average"][2]  # the counter does see graphs that are kept

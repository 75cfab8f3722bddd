"""The table of a planned speed run appears once all seeds of all rows are finished."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import speedrun_tables

ROWS = ("m1", "fast4", "m1x1.9", "m2", "easy4")
SECONDS = {"m1": 5.0, "fast4": 9.45, "m1x1.9": 9.5, "m2": 9.0, "easy4": 9.45}


@pytest.fixture
def found(monkeypatch):
    draw = np.random.default_rng(0)
    rows = {
        name: [{"seed": i, "seconds": SECONDS[name], "accuracy": draw.normal(94, 0.1), "accuracy_flip": 95.0}
               for i in range(20)]
        for name in ROWS
    }  # fmt: skip
    where = {"hardware": "NVIDIA H200", "versions": {"torch": "2.11.0"}, "commit": "0" * 40}
    monkeypatch.setattr(speedrun_tables, "result", lambda name: {"rows": rows, "environment": where})
    return rows


def cells(table):
    return {row[0]: row[1:] for line in table.splitlines() if len(row := line.strip("| ").split(" | ")) > 1}


def test_complete_table(found):
    table = cells(speedrun_tables.planned("speedrun-32", ROWS))
    fast = "m = 4, `fast=True`"
    longer = f"m = 1, time of {fast}"
    assert {"m = 1", fast, longer, "m = 2", "easiest of 4"} < table.keys()
    assert table[fast][0] == "9.45 ± 0.00"
    for other, row in {"m = 1": "m1", longer: "m1x1.9", "m = 2": "m2", "easiest of 4": "easy4"}.items():
        ours, theirs = ([run["accuracy"] for run in found[name]] for name in ("fast4", row))
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        expected = f"{np.mean(ours) - np.mean(theirs):+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "\N{MINUS SIGN}")
        shown = table[fast][3] if row == "m1" else table[f"{fast} minus {other}"][0]
        assert shown == expected


@pytest.mark.parametrize(("row", "seeds"), [("m2", 17), ("easy4", 0)])
def test_incomplete_table_is_not_shown(found, row, seeds):
    del found[row][seeds:]
    if not seeds:
        del found[row]
    text = speedrun_tables.planned("speedrun-32", ROWS)
    assert text.startswith("Not finished.")
    assert f"{row} {seeds}" in text
    assert "94" not in text

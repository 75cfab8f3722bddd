"""The table of a planned speed run appears once all seeds of all rows are finished."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import result_files, speedrun_tables

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
    where = {"hardware": "NVIDIA H200", "versions": {"torch": "2.11.0"}, "commit": "0" * 40, "command": "--data data"}
    result = {"benchmark": "speedrun", "rows": rows, "environment": where}
    for module in (speedrun_tables, result_files):
        monkeypatch.setattr(module, "result", lambda name: result)
    return result


def cells(table):
    return {row[0]: row[1:] for line in table.splitlines() if len(row := line.strip("| ").split(" | ")) > 1}


FAST = "m = 4, fast"
NAMES = {"m1": "m = 1", "m1x1.9": f"m = 1, time of {FAST}", "m2": "m = 2", "easy4": "easiest of 4"}


@pytest.mark.parametrize("few_images", [False, True])
def test_complete_table(found, few_images):
    if few_images:  # chosen by the seed, so runs are pairs
        found["images"] = 1000
    table = cells(speedrun_tables.planned("speedrun-32", ROWS))
    assert {FAST, *NAMES.values()} < table.keys()
    assert table[FAST][1] == "9.4 ± 0.0"
    for row, name in NAMES.items():
        ours, theirs = ([run["accuracy"] for run in found["rows"][which]] for which in ("fast4", row))
        test = stats.ttest_rel(ours, theirs) if few_images else stats.ttest_ind(ours, theirs, equal_var=False)
        low, high = test.confidence_interval()
        expected = f"{np.mean(ours) - np.mean(theirs):+.2f} [{low:+.2f}, {high:+.2f}]"
        assert table[f"{FAST} minus {name}"][0] == expected
        if row == "m1":
            assert table[FAST][0] == f"{np.mean(ours):.2f} ± {np.std(ours, ddof=1):.2f} [{low:+.2f}, {high:+.2f}]"


def test_rows_are_paired_by_seed_and_named_in_any_order(found):
    found["images"] = 1000
    before = result_files.compared("speedrun-32")
    found["rows"] = {row: runs[::-1] for row, runs in reversed(found["rows"].items())}
    assert result_files.compared("speedrun-32") == before
    assert next(iter(before["runs"])) == "m = 1"
    found["rows"]["fast4"][0]["seed"] = 77
    with pytest.raises(AssertionError, match="other seeds"):
        result_files.compared("speedrun-32")


@pytest.mark.parametrize(("row", "seeds"), [("m2", 17), ("easy4", 0)])
def test_incomplete_table_is_not_shown(found, row, seeds):
    del found["rows"][row][seeds:]
    if not seeds:
        del found["rows"][row]
    text = speedrun_tables.planned("speedrun-32", ROWS)
    assert text.startswith("Not finished.")
    assert f"{row} {seeds}" in text
    assert "94" not in text

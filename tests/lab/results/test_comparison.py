"""Statistics against scipy's own tests."""

import re

import numpy as np
import pytest
from scipy import stats

from maxup.lab.report.comparison import plot
from maxup.lab.results.comparison import METRICS, gain, summary, text


def fake(seeds=5, rows=("m = 1", "m = 4", "m = 1, time of m = 4")):
    rng = np.random.default_rng(0)
    return {row: [{m: float(rng.normal(50, 3)) for m in METRICS} | {"seed": s} for s in range(seeds)] for row in rows}


def result(runs, paired=False):
    return {
        "seeds": list(range(len(runs["m = 1"]))), "paired": paired, "runs": runs,
        "summary": summary(runs, paired=paired),
        "attack": {"radius": 0.5, "p": 2, "steps": 10},
        "equal_time": {
            "m = 1, time of m = 4": {
                "ratio": 2.0, "epochs": 120, "gain": gain(runs["m = 4"], runs["m = 1, time of m = 4"], paired=paired)
            }
        },
    }  # fmt: skip


@pytest.mark.parametrize("paired", [False, True])
def test_interval_is_that_of_welch_or_paired_where_a_seed_has_its_images(paired):
    runs = fake()
    table = summary(runs, paired=paired)
    for metric in METRICS:
        a, b = (np.array([run[metric] for run in runs[row]]) for row in ("m = 4", "m = 1"))
        test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
        low, high = test.confidence_interval(0.95)
        row = table[metric]["m = 4"]
        assert (row["low"], row["high"]) == pytest.approx((low, high))
        assert row["difference"] == pytest.approx((a - b).mean())
        assert table[metric]["m = 1"] == pytest.approx({"mean": b.mean(), "std": b.std(ddof=1)})


def test_a_metric_some_run_lacks_is_left_out():
    runs = fake()
    del runs["m = 4"][2]["worst"]
    assert "worst" not in summary(runs, paired=False)


def test_text_says_every_row_and_ratio_and_what_is_gained_at_equal_time():
    runs = fake()
    printed = text(result(runs))
    a, b = (np.array([run["attacked"] for run in runs[row]]) for row in ("m = 4", "m = 1, time of m = 4"))
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert f"PGD {(a - b).mean():+.2f} [{low:+.2f}, {high:+.2f}]" in printed
    for word in ("m = 4", "has Welch's 95 % interval", "radius 0.5, 10 steps", "120 epochs", "2.00 times"):
        assert word in printed

    assert "has the paired 95 % interval" in text(result(runs, paired=True))


@pytest.mark.parametrize("paired", [False, True])
def test_two_seeds_have_no_interval(paired, tmp_path):
    """Also where their differences coincide, whose paired interval would have no width."""
    runs = fake(seeds=2)
    for row in runs.values():
        row[1] = {m: v + 1 for m, v in row[0].items()}
    found = result(runs, paired)
    printed = text(found)
    assert "[" not in printed.replace("[%]", "")
    assert "3 or more seeds" in printed
    difference = runs["m = 4"][0]["clean"] - runs["m = 1"][0]["clean"]
    assert f"{difference:+.2f}\n" in printed
    assert found["summary"]["clean"]["m = 4"]["low"] is None
    plot(found, tmp_path / "a.png", "tiny")


def test_seeds_that_agree_have_no_interval():
    runs = {"m = 1": [dict.fromkeys(METRICS, 1.0)] * 3, "m = 4": [dict.fromkeys(METRICS, 2.0)] * 3}
    printed = text(result(runs | {"m = 1, time of m = 4": runs["m = 1"]}))
    assert "+1.00\n" in printed
    assert "[+1.00" not in printed
    assert "none where all seeds agree" in printed


def test_a_metric_that_is_infinite_has_no_deviation(tmp_path):
    runs = fake()
    runs["m = 4"][1]["gradient"] = np.inf
    printed = text(result(runs))
    assert re.search(r"input-gradient norm.*\n.*\n  m = 4 +inf\n", printed)
    plot(result(runs), tmp_path / "a.png", "tiny")


def test_plot_writes_a_picture(tmp_path):
    plot(result(fake()), tmp_path / "a.png", "tiny")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

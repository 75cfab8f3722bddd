"""Statistics against scipy's own paired test."""

import re

import numpy as np
import pytest
from scipy import stats

from maxup.report.comparison import METRICS, gain, plot, summary, text


def fake(seeds=5, rows=("m = 1", "m = 4", "m = 1, time of m = 4")):
    rng = np.random.default_rng(0)
    return {row: [{m: float(rng.normal(50, 3)) for m in METRICS} | {"seed": s} for s in range(seeds)] for row in rows}


def result(runs):
    return {
        "seeds": list(range(len(runs["m = 1"]))), "summary": summary(runs), "runs": runs,
        "attack": {"radius": 0.5, "p": 2, "steps": 10},
        "equal_time": {
            "m = 1, time of m = 4": {
                "ratio": 2.0, "epochs": 120, "gain": gain(runs["m = 4"], runs["m = 1, time of m = 4"])
            }
        },
    }  # fmt: skip


def test_interval_is_that_of_a_paired_t_test():
    runs = fake()
    table = summary(runs)
    for metric in METRICS:
        a, b = (np.array([run[metric] for run in runs[row]]) for row in ("m = 4", "m = 1"))
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        row = table[metric]["m = 4"]
        assert (row["low"], row["high"]) == pytest.approx((low, high))
        assert row["difference"] == pytest.approx((a - b).mean())
        assert table[metric]["m = 1"] == pytest.approx({"mean": b.mean(), "std": b.std(ddof=1)})


def test_a_metric_some_run_lacks_is_left_out():
    runs = fake()
    del runs["m = 4"][2]["worst"]
    assert "worst" not in summary(runs)


def test_text_says_every_row_and_ratio_and_what_is_gained_at_equal_time():
    runs = fake()
    printed = text(result(runs))
    a, b = (np.array([run["attacked"] for run in runs[row]]) for row in ("m = 4", "m = 1, time of m = 4"))
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert f"PGD {(a - b).mean():+.2f} [{low:+.2f}, {high:+.2f}]" in printed
    for word in ("m = 4", "95 % interval", "radius 0.5, 10 steps", "120 epochs", "2.00 times"):
        assert word in printed


def test_a_metric_that_is_infinite_has_no_deviation(tmp_path):
    runs = fake()
    runs["m = 4"][1]["gradient"] = np.inf
    printed = text(result(runs))
    assert re.search(r"input-gradient norm.*\n.*\n  m = 4 +inf\n", printed)
    plot(result(runs), tmp_path / "a.png", "tiny")


def test_plot_writes_a_picture(tmp_path):
    plot(result(fake()), tmp_path / "a.png", "tiny")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

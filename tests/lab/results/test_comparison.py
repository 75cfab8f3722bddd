"""Statistics of a comparison, against scipy."""

import numpy as np
import pytest
from scipy import stats

from maxup.lab.results.comparison import METRICS, gain, summary


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
def test_interval_is_welch_or_paired(paired):
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


def test_a_metric_that_a_run_lacks_is_skipped():
    runs = fake()
    del runs["m = 4"][2]["worst"]
    assert "worst" not in summary(runs, paired=False)

"""A comparison as text and as a plot."""

import re

import numpy as np
import pytest
from scipy import stats

from maxup.lab.report.comparison import plot, text, verdicts
from maxup.lab.results.comparison import METRICS, gain, summary
from tests.lab.results.test_comparison import fake, result


def test_text_has_every_row_ratio_and_gain_at_equal_time():
    runs = fake()
    printed = text(result(runs))
    a, b = (np.array([run["attacked"] for run in runs[row]]) for row in ("m = 4", "m = 1, time of m = 4"))
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert f"PGD {(a - b).mean():+.2f} [{low:+.2f}, {high:+.2f}]" in printed
    for word in ("m = 4", "In brackets: Welch's 95 % interval", "radius 0.5, 10 steps", "120 epochs", "2.00 times"):
        assert word in printed

    assert "In brackets: the paired 95 % interval" in text(result(runs, paired=True))


def test_text_compares_maxup_with_controls_of_as_many_copies():
    rows = ("m = 1", "m = 4", "m = 8", "average of 4", "easiest of 8", "hardest 25 %", "m = 1, time of m = 4")
    runs = fake(rows=rows)
    printed = text(result(runs, paired=True))
    for ours, control in (("m = 4", "average of 4"), ("m = 8", "easiest of 8")):
        a, b = (np.array([run["clean"] for run in runs[row]]) for row in (ours, control))
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert f"{ours} minus {control}: clean {(a - b).mean():+.2f} [{low:+.2f}, {high:+.2f}], worst of" in printed
    assert printed.count(" minus ") == 3


def test_text_compares_fast_with_exact_scoring_and_with_the_baseline():
    runs = fake(rows=("m = 1", "m = 4", "m = 4, fast", "m = 1, time of m = 4", "m = 1, time of m = 4, fast"))
    printed = text(result(runs, paired=True))
    a, b = (np.array([run["clean"] for run in runs[row]]) for row in ("m = 4, fast", "m = 4"))
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert f"\nm = 4, fast minus m = 4: clean {(a - b).mean():+.2f} [{low:+.2f}, {high:+.2f}], worst of" in printed
    assert "m = 4, fast against m = 1 at equal epochs. " in printed


@pytest.mark.parametrize("paired", [False, True])
def test_two_seeds_have_no_interval(paired, tmp_path):
    """Also if both differences are equal, so that a paired interval would have no width."""
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
    assert "none if all seeds give the same value" in printed


def test_an_infinite_metric_has_no_deviation(tmp_path):
    runs = fake()
    runs["m = 4"][1]["gradient"] = np.inf
    printed = text(result(runs))
    assert re.search(r"input-gradient norm.*\n.*\n  m = 4 +inf\n", printed)
    plot(result(runs), tmp_path / "a.png", "tiny")


def test_plot_writes_a_png(tmp_path):
    plot(result(fake()), tmp_path / "a.png", "tiny")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_verdict_needs_an_interval_on_one_side_of_zero():
    def values(*means):  # of four seeds
        return [{"clean": c, "gradient": g, "seconds": 9.0} for c, g in zip(*means, strict=True)]

    base = values([90.0, 91.0, 92.0, 93.0], [1.0, 1.1, 1.2, 1.3])
    more = values([91.0, 92.1, 93.0, 94.1], [0.5, 0.6, 0.8, 0.8])  # better by both: a small gradient is good
    longer = values([92.0, 93.2, 94.1, 95.0], [0.4, 0.7, 0.7, 0.9])  # better by accuracy
    runs = {"m = 1": base, "m = 4": more, "m = 8": base[::-1], "m = 1, time of m = 4": longer}
    result = {
        "runs": runs,
        "seeds": [0, 1, 2, 3],
        "summary": summary(runs, paired=True),
        "equal_time": {"m = 1, time of m = 4": {"gain": gain(more, longer, paired=True)}},
    }
    assert verdicts(result) == [
        "m = 4 against m = 1 at equal epochs. Better: clean, gradient",
        "m = 4 against m = 1 at equal time. Worse: clean. Undecided: gradient",
        "m = 8 against m = 1 at equal epochs. Undecided: clean, gradient",
        "Each interval misses a true difference of 0 in 1 of 20 cases by chance.",
    ]
    assert verdicts(result | {"seeds": [0, 1]}) == []

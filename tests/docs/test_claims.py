"""The claims table of the results page: its rule, and its numbers against scipy."""

import json
import re
from collections import Counter

import pytest
import scipy.stats

from benchmarks import claims
from benchmarks.tables import ROOT
from maxup.lab.results.paper import load_paper
from maxup.lab.results.statistics import Difference

ROW = load_paper()["table-cifar10"].rows["resnet110-cutout-maxup"]
NAME = "cifar10/resnet110-cutout"


@pytest.mark.parametrize(
    ("low", "high", "higher", "lower"),
    [
        (0.1, 0.9, "better", "worse"),
        (-0.1, 0.9, "undecided", "undecided"),
        (-0.9, -0.1, "worse", "better"),
        (0.0, 0.9, "undecided", "undecided"),
        (None, None, "untested", "untested"),
    ],
)
def test_verdict_follows_the_interval(low, high, higher, lower):
    found = Difference(0.4, low, high, 3)
    assert (claims.verdict(found), claims.verdict(found, lower=True)) == (higher, lower)
    assert claims.verdict(None) == "untested"


def runs(**values):
    """Runs by name, such as m4_60 for m = 4 and 60 of 200 epochs."""
    found = {}
    for name, accuracies in values.items():
        m, epochs = map(int, name.removeprefix("m").split("_"))
        found[NAME, m, epochs / 200] = {seed: {"test_accuracy": a / 100} for seed, a in enumerate(accuracies)}
    return found


def test_longest_runs_with_an_interval_count():
    short = {"m1_60": [90.0, 90.2, 90.1], "m4_60": [91.0, 91.2, 91.3]}
    found = claims.measure(runs(**short, m1_200=[95.0, 95.1], m4_200=[94.0, 94.1]), ROW, "test_accuracy", 100)
    assert found.what == "ResNet-110, m = 4, 60 of 200 epochs"
    assert claims.verdict(found.difference) == "better"
    assert found.at_equal_time is None
    long = {"m1_200": [95.0, 95.1, 95.2], "m4_200": [94.0, 94.1, 94.2], "m10_200": [99.0, 99.1, 99.2]}
    found = claims.measure(runs(**short, **long), ROW, "test_accuracy", 100)
    assert found.what == "ResNet-110, m = 4, full length"
    assert claims.verdict(found.difference) == "worse"
    found = claims.measure(runs(m1_200=[95.0], m4_200=[96.0]), ROW, "test_accuracy", 100)
    assert (claims.verdict(found.difference), found.difference.n) == ("untested", 1)
    assert claims.measure(runs(m4_200=[96.0] * 3, m1_240=[95.0] * 3), ROW, "test_accuracy", 100) is claims.UNTESTED


def test_equal_time_is_the_measured_ratio_of_epochs():
    ratio = json.loads((ROOT / "results" / "epoch-cuda.json").read_text())["ratio"]
    epochs = round(100 * ratio["maxup, running norm, one wide batch"])
    values = {"m1_100": [90.0, 90.1, 90.2], "m4_100": [91.0, 91.1, 91.2], "m1_190": [99.0, 99.1, 99.2]}
    found = claims.measure(runs(**values), ROW, "test_accuracy", 100)
    assert found.at_equal_time is None  # 190 epochs take longer
    found = claims.measure(runs(**values, **{f"m1_{epochs}": [92.0, 92.1, 92.3]}), ROW, "test_accuracy", 100)
    assert found.at_equal_time.mean == pytest.approx(91.1 - 92.133333)
    assert claims.verdict(found.at_equal_time) == "worse"


def test_cifar_row_is_that_of_scipy():
    found = claims.measure(claims.load_runs(), ROW, "test_accuracy", 100)
    epochs = 200 if "full" in found.what else int(re.search(r"(\d+) of 200", found.what)[1])
    sides = [
        [100 * last["test_accuracy"] for last in claims.load_runs()[NAME, m, epochs / 200].values()] for m in (4, 1)
    ]
    test = scipy.stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((test.low, test.high))


def read_table(question):
    """The rows of a table, with the text of a row whose first cell is empty."""
    text = ""
    for line in claims.table(question).splitlines()[2:]:
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        text = first or text
        yield text, *cells


def test_every_verdict_of_the_page_follows_from_its_interval():
    counts = {question: [Counter(), Counter()] for question in claims.QUESTIONS}
    for question in claims.QUESTIONS:
        rows = [row for row in read_table(question) if not row[0].startswith("cost")]
        assert len(rows) > 5
        for text, link, *cells, n in rows:
            for cell, count in zip(cells, counts[question], strict=True):
                word, _, number = cell.partition(", ")
                ends = [
                    float(end.replace("\N{MINUS SIGN}", "-"))
                    for end in re.findall(r"[+\N{MINUS SIGN}-][\d.]+(?=[,\]])", number)
                ]
                if ends:
                    low, high = ends
                    better, worse = (-high, -low) if "perplexity" in text or question == "gradient" else (low, high)
                    expected = "better" if better > 0 else "worse" if worse < 0 else "undecided"
                    if question == "paper":
                        expected = "supported" if expected == "better" else f"not supported ({expected})"
                    if better and worse:  # not rounded to 0
                        assert word == expected, (text, link)
                    assert int(n) >= 3
                else:
                    assert word == "untested"
                    assert question == "paper" or text.startswith("perplexity"), text
                count[word] += 1
            assert "](#" in link
    for row, columns in zip(claims.tally().splitlines()[2:], counts.values(), strict=True):
        numbers = [int(cell) for cell in row.split("|")[2:-1]]
        words = ("better", "undecided", "worse", "untested")
        assert numbers == [
            sum(count[word] for word in {name, claims.OF_A_CLAIM.get(name, name)})
            for count in columns
            for name in words
        ]


def test_costs_are_those_of_the_benchmarks():
    (_, times, time), (_, _, memory) = claims.costs()
    assert f"{time:.2f} times" in times
    assert memory == pytest.approx(1, abs=0.05)

import random

import pytest
from scipy import stats

from maxup.lab.certify.analysis import RADII, abstained, average_radius, certified_accuracy, metrics
from maxup.lab.certify.tsv import Row


def rows(seed=0, n=60):
    rng = random.Random(seed)
    found = []
    for i in range(n):
        predict = rng.choice([-1, 0, 0, 0, 1])
        found.append(Row(i, 0, predict, rng.random() * 2 if predict >= 0 else 0.0, predict == 0, ""))
    return found


def test_certified_accuracy_is_a_count_with_the_clopper_pearson_interval():
    found = rows()
    for radius in (0.0, 0.5, 1.9, 5.0):
        k = len([r for r in found if r.label == r.predict and r.radius >= radius])
        share, exact = certified_accuracy(found, radius), stats.binomtest(k, 60).proportion_ci(0.95, "exact")
        assert share.mean == k / 60
        assert (share.low, share.high) == pytest.approx((exact.low, exact.high), abs=1e-10)
        assert share.error == pytest.approx(stats.binom.std(60, k / 60) / 60)


def test_average_radius_is_the_area_under_the_curve():
    found = rows()
    step = 0.001
    area = step * sum(certified_accuracy(found, step * (k + 0.5)).mean for k in range(2500))
    assert average_radius(found) == pytest.approx(area, abs=0.002)
    assert abstained(found) == sum(r.predict == -1 for r in found) / 60


def test_reports_find_the_metrics():
    from maxup.lab.results.files import Result
    from maxup.lab.results.paper import load_paper
    from maxup.lab.results.tables import measured

    table, found = load_paper()["table-certified"], metrics(rows())
    assert [float(metric) for metric in table.metrics] == RADII
    result = Result("a", 0, 1, True, 1.0, found, 1.0, {})
    for metric in table.metrics:
        value = measured(result, table.rows["gaussian"], metric)
        assert value == pytest.approx(100 * certified_accuracy(rows(), float(metric)).mean)

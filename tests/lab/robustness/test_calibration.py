"""Calibration against a slow loop over predictions."""

import math

import pytest
import torch

from maxup.lab.robustness.calibration import Calibration


def slow(probabilities, labels, bins=15):
    """Expected calibration error and negative log-likelihood, prediction by prediction."""
    held = [[] for _ in range(bins)]
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        held[max(b for b in range(bins) if confidence > b / bins)].append((confidence, row.index(confidence) == label))
    error = 0.0
    for predictions in held:
        if predictions:
            confidence = sum(c for c, _ in predictions) / len(predictions)
            accuracy = sum(right for _, right in predictions) / len(predictions)
            error += len(predictions) / len(labels) * abs(accuracy - confidence)
    nll = -sum(math.log(row[y]) for row, y in zip(probabilities.tolist(), labels.tolist(), strict=True))
    return error, nll / len(labels)


@pytest.mark.parametrize("scale", [0.5, 3.0, 8.0])
def test_metrics_are_those_of_a_slow_loop(scale):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(400, 10, generator=generator)
    y = torch.where(torch.rand(400, generator=generator) < 0.7, logits.argmax(1), torch.randint(10, (400,)))
    found = Calibration(torch.device("cpu"))
    for part in (slice(0, 150), slice(150, 151), slice(151, 400)):
        found.update(logits[part], y[part])
    error, nll = slow(logits.double().softmax(1), y)
    metrics = found.metrics()
    assert metrics["ece"] == pytest.approx(error, abs=1e-6)
    assert metrics["nll"] == pytest.approx(nll, rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))


def test_known_cases():
    sure = torch.tensor([[100.0, 0.0]]).repeat(4, 1)
    found = Calibration(torch.device("cpu"))
    found.update(sure, torch.tensor([0, 0, 0, 1]))  # 100 % sure, and right 3 times of 4
    assert found.metrics() == {"accuracy": 0.75, "nll": 25.0, "ece": 0.25}
    found = Calibration(torch.device("cpu"))
    found.update(sure, torch.tensor([0, 0, 0, 0]))
    assert found.metrics()["ece"] == 0
    found = Calibration(torch.device("cpu"))  # 75 % sure, and right 3 times of 4
    found.update(torch.tensor([[0.75, 0.25]]).log().repeat(4, 1), torch.tensor([0, 0, 0, 1]))
    assert found.metrics()["ece"] == pytest.approx(0, abs=1e-7)


def test_opposite_errors_of_one_bin_cancel_but_not_those_of_two():
    logits = torch.tensor([[0.75, 0.25], [0.95, 0.05]]).log()
    found = Calibration(torch.device("cpu"))
    found.update(logits, torch.tensor([0, 1]))
    assert found.metrics()["ece"] == pytest.approx((0.25 + 0.95) / 2)

"""Peak memory does not grow with m, by counting every byte."""

import pytest
import torch

import maxup as mu
from benchmarks.memory import measure, peak_bytes


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_peak_memory_does_not_grow_with_m():
    peaks = measure(4, [2, 4, 64], "cpu")
    assert peaks["maxup"][64] < 1.1 * peaks["maxup"][2]
    assert peaks["average"][4] > 1.5 * peaks["average"][2]  # the counter does see retained graphs


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("perturbation", [mu.Gaussian(0.1), mu.Compose(mu.Gaussian(0.1), mu.UniformBall(0.1))])
def test_draws_are_not_kept(perturbation):
    """Noise is as large as the batch, so keeping the draws of all copies would show."""
    model, x, y = (
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(40000, 2)),
        torch.rand(8, 40000),
        torch.zeros(8),
    )
    peaks = []
    for m in (2, 32):
        objective = mu.MaxUp(perturbation, m=m)
        objective.select(model, x, y.long())
        peaks.append(peak_bytes(lambda objective=objective: objective.select(model, x, y.long()), "cpu"))
    assert peaks[1] < 1.1 * peaks[0]

"""Coverage by simulation: 10,000 classifiers whose probabilities are known, certified by the whole machinery."""

import pytest
import torch
from scipy import stats
from torch import nn

from maxup.smoothing.smooth import Smooth

ALPHA, SIGMA, COUNT = 0.05, 0.5, 10_000


@pytest.mark.parametrize("how", [{}, {"adaptive": True, "radii": [0.1, 0.25, 0.5]}], ids=["fixed", "adaptive"])
def test_wrong_certificates_are_no_more_than_alpha(how):
    """f(x) = sign(x) at x = d answers its class with probability Phi(d / sigma): its exact radius is d.

    Many distances are short, where a class has little more than one half and a wrong claim is easiest.
    """
    generator = torch.Generator().manual_seed(0)
    distance = torch.rand(COUNT, generator=generator) ** 2 * 1.2
    x = torch.stack([distance, torch.zeros(COUNT)], 1)  # class 0 wins where x[0] + noise > 0
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    found = Smooth(model, 2, SIGMA).certify_many(x, 20, 1000, ALPHA, 2000, **how)
    wrong = claims = 0
    for certificate, d in zip(found, distance.tolist(), strict=True):
        truth = d if certificate.predict == 0 else -d  # class 1 holds within no radius at all
        claims += certificate.predict >= 0
        wrong += certificate.predict >= 0 and certificate.radius > truth
    assert claims > COUNT / 2
    assert wrong <= stats.binom.ppf(0.999, COUNT, ALPHA)
    assert wrong > 0  # the bound is not idle: some must be wrong

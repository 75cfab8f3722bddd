"""Coverage by simulation: certify 10,000 inputs whose exact radii are known."""

import pytest
import torch
from scipy import stats
from torch import nn

from maxup.smoothing.smooth import Smooth

ALPHA, SIGMA, COUNT = 0.05, 0.5, 10_000


@pytest.mark.parametrize(
    "how",
    [{}, {"adaptive": True, "radii": [0.1, 0.25, 0.5]}],
    ids=["fixed", "adaptive"],
)
@pytest.mark.slow
def test_at_most_alpha_of_the_certificates_are_wrong(how):
    """f(x) = sign(x) at x = d predicts its class with probability Phi(d / sigma), so the exact radius is d.

    Many distances are short. The probability is then just above one half, where a wrong certificate is most likely.
    """
    generator = torch.Generator().manual_seed(0)
    distance = torch.rand(COUNT, generator=generator) ** 2 * 1.2
    x = torch.stack([distance, torch.zeros(COUNT)], 1)  # class 0 is predicted if x[0] + noise > 0
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    certificates = Smooth(model, 2, SIGMA).certify_many(x, 20, 1000, ALPHA, 2000, **how)
    wrong = claims = 0
    for certificate, d in zip(certificates, distance.tolist(), strict=True):
        truth = d if certificate.predict == 0 else -d  # class 1 is wrong at any radius
        claims += certificate.predict >= 0
        wrong += certificate.predict >= 0 and certificate.radius > truth
    assert claims > COUNT / 2
    assert wrong <= stats.binom.ppf(0.999, COUNT, ALPHA)
    assert wrong > 0  # the bound is tight enough that some are wrong

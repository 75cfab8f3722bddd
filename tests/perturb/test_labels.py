import math

import pytest
import torch

from maxup import LabelNoise
from maxup.perturb.labels import entropy
from tests.tiny import far_from_beta, generator


def test_mixes_the_label_with_its_draw():
    q = torch.tensor([[0.5, 0.25, 0.25]])
    x, y = LabelNoise(0.2, num_classes=3).apply(("x", torch.tensor([1])), q)
    assert x == "x"
    torch.testing.assert_close(y, torch.tensor([[0.1, 0.85, 0.05]]))


@pytest.mark.parametrize("concentration", [0.001, 0.05, 0.5, 1.0, 3.0])
def test_noise_is_dirichlet(concentration):
    """A coordinate of a symmetric Dirichlet over K classes is Beta(a, (K - 1) a)."""
    noise = LabelNoise(0.1, num_classes=5, concentration=concentration)
    q = noise.draw((None, torch.zeros(4000, dtype=torch.long)), generator())
    torch.testing.assert_close(q.sum(1), torch.ones(4000))
    for k in range(5):
        assert far_from_beta(q[:, k], concentration, 4 * concentration) < 1.63  # the 1 % level of Kolmogorov-Smirnov


def test_entropy():
    y = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    torch.testing.assert_close(entropy(y), torch.tensor([0.0, math.log(2)]))


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        LabelNoise(1.5)
    with pytest.raises(ValueError, match="concentration must be above 0"):
        LabelNoise(0.1, concentration=0)
    with pytest.raises(ValueError, match="needs the number of classes"):
        LabelNoise(0.1)(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"probability targets \(B, C\), but y is torch.float32 of shape \(2,\)"):
        LabelNoise(0.1)(torch.zeros(2, 3), torch.tensor([0.0, 1.0]))

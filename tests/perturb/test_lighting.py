import numpy as np
import pytest
import torch
from scipy import stats

from maxup import Lighting
from maxup.perturb.lighting import EIGENVALUES, EIGENVECTORS
from tests.tiny import generator


def test_adds_one_color_to_all_pixels():
    x = torch.rand(4, 3, 5, 6, dtype=torch.float64)
    lighting = Lighting(0.1, std=(0.2, 0.5, 1.0), mean=0.3)
    alpha = lighting.draw((x, None), generator())
    new, _ = lighting.apply((x, None), alpha)
    vectors, values = np.array(EIGENVECTORS), np.array(EIGENVALUES)
    for i in range(4):
        color = vectors @ (alpha[i].numpy() * values) / np.array([0.2, 0.5, 1.0])
        torch.testing.assert_close(new[i] - x[i], torch.tensor(color).view(3, 1, 1).expand(3, 5, 6))


def test_colors_have_the_covariance_of_imagenet():
    """alpha is normal; the covariance of the shift is sigma^2 V diag(values^2) V', with orthonormal V."""
    x = torch.zeros(20000, 3, 1, 1, dtype=torch.float64)
    alpha = Lighting(0.1).draw((x, None), generator())
    assert stats.kstest(alpha.flatten().numpy(), stats.norm(0, 0.1).cdf).pvalue > 0.01
    shift = Lighting(0.1).apply((x, None), alpha)[0].flatten(1).numpy()
    vectors = np.array(EIGENVECTORS)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-3)
    expected = 0.01 * vectors @ np.diag(np.square(EIGENVALUES)) @ vectors.T
    np.testing.assert_allclose(np.cov(shift.T), expected, atol=0.05 * expected.max())


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="sigma must be"):
        Lighting(-1)
    with pytest.raises(ValueError, match="expects RGB images"):
        Lighting()(torch.zeros(2, 1, 4, 4))

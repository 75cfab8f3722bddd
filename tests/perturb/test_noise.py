import math

import pytest
import torch
from scipy import stats

from maxup import Gaussian, UniformBall
from tests.tiny import generator


def test_gaussian_noise_is_normal_with_the_given_deviation():
    x = torch.zeros(20, 500)
    (noise,) = Gaussian(0.25).draw((x, None), generator())
    assert stats.kstest(noise.flatten().numpy(), stats.norm(0, 0.25).cdf).pvalue > 0.01


def test_gaussian_adds_its_draw():
    x, noise = torch.rand(2, 3), torch.rand(2, 3)
    assert torch.equal(Gaussian(0.1).apply((x, "y"), [noise])[0], x + noise)


@pytest.mark.parametrize("d", [1, 2, 50])
def test_euclidean_ball_is_uniform(d):
    """(r / R)^d is uniform, and a coordinate of the direction follows its Beta distribution."""
    u, _ = UniformBall(2.0, p=2)(torch.zeros(5000, d), generator=generator())
    radii = u.norm(dim=1)
    assert radii.max() <= 2.0 * (1 + 1e-6)
    assert stats.kstest(((radii / 2) ** d).numpy(), "uniform").pvalue > 0.01
    if d > 1:
        cosine = u[:, 0] / radii
        beta = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)  # distribution of a coordinate on the sphere
        assert stats.kstest(cosine.numpy(), beta.cdf).pvalue > 0.01


def test_cube_is_uniform():
    u, _ = UniformBall(0.5, p=math.inf)(torch.zeros(100, 50), generator=generator())
    assert stats.kstest(u.flatten().numpy(), stats.uniform(-0.5, 1).cdf).pvalue > 0.01


@pytest.mark.parametrize("invalid", [-0.1, math.nan, math.inf, "1"])
def test_invalid_sizes_are_refused(invalid):
    with pytest.raises(ValueError, match="0 or more"):
        Gaussian(invalid)
    with pytest.raises(ValueError, match="0 or more"):
        UniformBall(invalid)
    with pytest.raises(ValueError, match=r"UniformBall\(p=1\): p must be 2 or math\.inf"):
        UniformBall(1.0, p=1)


def test_integer_tensors_are_refused():
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        Gaussian(0.1)(torch.zeros(2, 3, dtype=torch.uint8))


def test_channels_last_is_kept():
    x = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for perturbation in (Gaussian(0.1), UniformBall(1.0), UniformBall(1.0, p=math.inf)):
        assert perturbation(x)[0].is_contiguous(memory_format=torch.channels_last)

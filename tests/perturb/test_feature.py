import math

import pytest
import torch
from scipy import stats
from torch import nn

import maxup as mu
from maxup.perturb.feature import add_noise, splitmix64, to_normal
from tests.tiny import batch, generator, net


def published(seed, count):
    """SplitMix64 as published, in Python integers."""
    mask, out = 2**64 - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_hash_is_splitmix64():
    seeds = torch.tensor([0, 1, 2**62 + 12345])
    for row, seed in zip(splitmix64(seeds, 20), seeds.tolist(), strict=True):
        assert [z % 2**64 for z in row.tolist()] == published(seed, 20)


def test_normal_numbers_are_those_of_box_and_muller_in_float64():
    hashes = published(5, 1000)
    radius = [math.sqrt(-2 * math.log(((z >> 41) + 0.5) / 2**23)) for z in hashes]
    cosine = [math.cos(2 * math.pi * ((z >> 18) % 2**23 + 0.5) / 2**23) for z in hashes]
    truth = torch.tensor([r * c for r, c in zip(radius, cosine, strict=True)], dtype=torch.float64)
    normal = to_normal(splitmix64(torch.tensor([5]), 1000))[0]
    assert normal.dtype == torch.float32
    torch.testing.assert_close(normal.double(), truth, rtol=0, atol=2e-6)


def test_noise_is_normal_within_and_across_examples():
    seeds = torch.randint(2**62, (200,), generator=generator())
    noise = add_noise(None, torch.zeros(200, 50), seeds, sigma=2.0)
    assert stats.kstest(noise.flatten().numpy(), stats.norm(0, 2).cdf).pvalue > 0.01
    assert abs(torch.corrcoef(noise[:, :2].T)[0, 1]) < 0.2
    assert not torch.equal(noise[0], noise[1])


def test_noise_is_added_to_the_named_layer_in_training_only():
    noise, model = mu.FeatureNoise(0.5, layer="1"), net()
    noise.attach(model)
    x, y = batch()
    clean = model(x)
    noise(x, y, generator=generator())
    assert not torch.equal(model(x), clean)
    assert torch.equal(model(x), model(x))  # the same draw gives the same noise
    model.eval()
    assert torch.equal(model(x), clean)


def test_invalid_layers_are_refused():
    lstm = nn.Sequential(nn.LSTM(3, 4))
    noise = mu.FeatureNoise(0.1, layer="0")
    noise.attach(lstm)
    noise(torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match="output is a tensor of 2 examples, but got a tuple"):
        lstm(torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match="sigma must be"):
        mu.FeatureNoise(-1, layer="0")


def test_noise_is_finite_for_every_hash():
    """A uniform of 0 would give an infinite number."""
    hashes = torch.tensor([0, -1, 2**63 - 1, -(2**63), 2**41 - 1, -(2**41)])
    assert (to_normal(hashes).abs() < 6).all()

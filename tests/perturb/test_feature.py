import pytest
import torch
from scipy import stats
from torch import nn

import maxup as mu
from maxup.perturb.feature import add_noise, hashed_uniform
from tests.tiny import batch, generator, net


def splitmix64(seed, count):
    """The published generator, in Python integers."""
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
    got = hashed_uniform(seeds, 20)
    for row, seed in zip(got, seeds.tolist(), strict=True):
        assert row.tolist() == [((z >> 11) + 0.5) * 2.0**-53 for z in splitmix64(seed, 20)]


def test_noise_is_normal_within_and_across_examples():
    seeds = torch.randint(2**63 - 1, (200,), generator=generator())
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


def test_noise_is_finite_for_every_hash(monkeypatch):
    """The largest hash would round to a uniform of 1, whose normal quantile is infinite."""
    monkeypatch.setattr("maxup.perturb.feature._shift", lambda h, bits: torch.full_like(h, 2**53 - 1))
    assert torch.special.ndtri(hashed_uniform(torch.zeros(1, dtype=torch.long), 3)).isfinite().all()

"""Gaussian noise in feature space, which the paper names as future work."""

import math
from functools import partial

import torch
from torch import Generator, Tensor, nn

from maxup.batch import Batch, batch_size, leaves
from maxup.errors import a_type
from maxup.perturb.base import draw_seeds
from maxup.perturb.in_model import InModelPerturbation, attach_to, find_layer
from maxup.perturb.noise import check_nonnegative


class FeatureNoise(InModelPerturbation):
    """Add Gaussian noise to the output h of a hidden layer: h' = h + sigma * z, z ~ N(0, I).

    The shape of h is unknown when copies are drawn, so the draw is one seed per example, (B,). The layer computes the
    noise with a counter-based generator: element k of example i is a hash of (seed i, k). The noise is reproduced
    exactly, works for any shape with the batch first, and takes no memory between passes.

    Args:
        sigma: Standard deviation of the noise, in the units of h.
        layer: Name of the layer, as in `model.named_modules()`.

    Example:
        >>> from maxup import MaxUp
        >>> noise = FeatureNoise(0.1, layer="0")
        >>> model = noise.attach(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)))
        >>> MaxUp(noise, m=4)(model, torch.rand(6, 5), torch.tensor([0, 1, 0, 1, 0, 1])).backward()
    """

    def __init__(self, sigma: float, *, layer: str) -> None:
        self.sigma = check_nonnegative("FeatureNoise", "sigma", sigma)
        self.layer = str(layer)  # YAML may read "1" as a number

    def attach(self, model: nn.Module) -> nn.Module:
        self.hooks = (attach_to(find_layer(model, self.layer, "FeatureNoise"), partial(add_noise, sigma=self.sigma)),)
        return model

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        self._require_hooks()
        return draw_seeds((batch_size(batch),), leaves(batch)[0], generator)


def add_noise(inputs: Tensor, hidden: Tensor, seeds: Tensor, sigma: float) -> Tensor:
    """Add to each example the noise that its seed generates."""
    if not isinstance(hidden, Tensor) or len(hidden) != len(seeds):
        what = f"shape {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else a_type(hidden)
        raise ValueError(
            f"FeatureNoise expects a layer whose output is a tensor of {len(seeds)} examples, but got {what}"
        )
    noise = to_normal(splitmix64(seeds, hidden[0].numel())).to(hidden.dtype)
    return hidden + sigma * noise.view_as(hidden)


def splitmix64(seeds: Tensor, n: int) -> Tensor:
    """Return n hashes of 64 bits per seed: (B,) -> (B, n), as int64 (Steele, Lea and Flood, 2014)."""
    h = seeds[:, None] + torch.arange(1, n + 1, device=seeds.device) * _GOLDEN  # wraps around, as SplitMix64 needs
    h = (h ^ _shift(h, 30)) * _MIX1
    h = (h ^ _shift(h, 27)) * _MIX2
    return h ^ _shift(h, 31)


def to_normal(hashes: Tensor) -> Tensor:
    """Turn each hash of 64 bits into a standard normal number, by the method of Box and Muller (1958).

    It needs no float64, which Apple's GPUs do not have.
    """
    radius = (-2 * _uniform(_shift(hashes, 41)).log()).sqrt()  # from bits 41 to 63
    angle = 2 * math.pi * _uniform(_shift(hashes, 18) & (2**23 - 1))  # from bits 18 to 40
    return radius * angle.cos()


def _uniform(bits: Tensor) -> Tensor:
    """Turn integers of 23 bits into numbers in the open interval (0, 1). All of them are exact in float32."""
    return (bits.float() + 0.5) * 2.0**-23


def _shift(h: Tensor, bits: int) -> Tensor:
    return (h >> bits) & (2 ** (64 - bits) - 1)  # a logical shift: int64's >> copies the sign


_GOLDEN, _MIX1, _MIX2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

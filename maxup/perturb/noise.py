"""Additive noise: Gaussian, as in the paper's theory and certification, and uniform in a ball."""

import math
from collections.abc import Hashable
from numbers import Real

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, expand_like, get_leaves, set_leaves
from maxup.errors import format_value
from maxup.perturb.base import Perturbation
from maxup.validate import check_real


class Gaussian(Perturbation):
    """Add Gaussian noise: x' = x + sigma * z, z ~ N(0, I). The draw is the noise. The result is not clipped.

    Args:
        sigma: Standard deviation of the noise, in the units of x.
        key: Entry of x to perturb. Default: every floating-point leaf.

    Example:
        >>> x, y = Gaussian(0.1)(torch.zeros(4, 3, 8, 8), torch.zeros(4))
        >>> x.shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, sigma: float, *, key: Hashable | None = None) -> None:
        self.sigma, self.key = check_nonnegative("Gaussian", "sigma", sigma), key

    def draw(self, batch: Batch, generator: Generator | None) -> list[Tensor]:
        return [_normal(leaf, generator).mul_(self.sigma) for leaf in floating_leaves(batch[0], self.key, "Gaussian")]

    def apply(self, batch: Batch, draw: list[Tensor]) -> Batch:
        return add(batch, draw, self.key)


class UniformBall(Perturbation):
    """Add noise drawn uniformly from a ball, per example. The draw is the noise.

    Args:
        radius: Radius of the ball.
        p: Norm of the ball: 2 for Euclidean, `math.inf` for a cube.
        key: Entry of x to perturb. Default: every floating-point leaf, each with its own ball.

    Example:
        >>> x, _ = UniformBall(0.5, p=2)(torch.zeros(4, 10))
        >>> bool((x.norm(dim=1) <= 0.5).all())
        True
    """

    def __init__(self, radius: float, *, p: float = 2, key: Hashable | None = None) -> None:
        self.radius, self.key = check_nonnegative("UniformBall", "radius", radius), key
        if p not in (2, math.inf):
            raise ValueError(f"UniformBall(p={p!r}): p must be 2 or math.inf")
        self.p = p

    def draw(self, batch: Batch, generator: Generator | None) -> list[Tensor]:
        return [self._draw(leaf, generator) for leaf in floating_leaves(batch[0], self.key, "UniformBall")]

    def _draw(self, leaf: Tensor, generator: Generator | None) -> Tensor:
        if self.p == math.inf:
            return torch.empty_like(leaf).uniform_(-self.radius, self.radius, generator=generator)
        direction = _normal(leaf, generator)
        d = leaf[0].numel()
        u = torch.empty(len(leaf), dtype=leaf.dtype, device=leaf.device).uniform_(generator=generator)
        length = self.radius * u ** (1 / d)  # a fraction (r / radius)^d of the volume lies within r
        return direction * expand_like(length / l2_norms(direction), leaf)

    def apply(self, batch: Batch, draw: list[Tensor]) -> Batch:
        return add(batch, draw, self.key)


def add(batch: Batch, noise: list[Tensor], key: Hashable | None) -> Batch:
    """Add noise to the selected leaves of x."""
    x, y = batch
    return set_leaves(x, [leaf + n for leaf, n in zip(get_leaves(x, key), noise, strict=True)], key), y


def l2_norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each example, at least the smallest positive number: (B, ...) -> (B,)."""
    return x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)


def normalize_l2(x: Tensor) -> Tensor:
    """Scale each example to norm 1, and leave zeros at zero: (B, ...) -> (B, ...)."""
    largest = x.flatten(1).abs().amax(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    x = x / expand_like(largest, x)  # squares of small values, as in a confident network's gradient, would underflow
    return x / expand_like(l2_norms(x), x)


def project_l2(x: Tensor, radius: float) -> Tensor:
    """Project each example onto the l2 ball around 0: (B, ...) -> (B, ...)."""
    return x * expand_like((radius / l2_norms(x)).clamp(max=1), x)


def clip_delta(x: Tensor, delta: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """Return delta such that x + delta stays within `clip`, (lowest, highest)."""
    return delta if clip is None else (x + delta).clamp(*clip) - x


def check_clip(who: str, clip: tuple[float, float] | None) -> tuple[float, float] | None:
    """Check a pair of the lowest and highest value; None means no limit."""
    if clip is None:
        return None
    pair = clip if isinstance(clip, list | tuple) and len(clip) == 2 else (0, 0)
    if not all(isinstance(end, Real) for end in pair) or not pair[0] < pair[1]:
        raise ValueError(f"{who}(clip={format_value(clip)}): clip must be (lowest, highest)")
    return pair


def _normal(like: Tensor, generator: Generator | None) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


def floating_leaves(x: object, key: Hashable | None, who: str) -> list[Tensor]:
    """Return the tensors of x to perturb, which must be floating point."""
    leaves = get_leaves(x, key)
    for leaf in leaves:
        if not leaf.is_floating_point():
            raise TypeError(
                f"{who} adds noise to floating-point tensors, but x holds {leaf.dtype}; scale images as in "
                "x.float() / 255, or perturb the embedding of tokens with FeatureNoise"
            )
    return leaves


def check_nonnegative(who: str, name: str, value: float) -> float:
    """Check that a number is finite and not negative."""
    return check_real(who, name, value, "a finite number, 0 or more", 0)

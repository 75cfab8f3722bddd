"""Additive noise: Gaussian, as in the paper's theory and certification, and uniform in a ball."""

import math
from collections.abc import Hashable

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, column, get_leaves, set_leaves
from maxup.perturb.base import Perturbation
from maxup.validate import check_real


class Gaussian(Perturbation):
    """x' = x + sigma * z with z ~ N(0, I); neither clipped nor rescaled. The draw is the noise.

    Args:
        sigma: Standard deviation, in the units of x.
        key: Which entry of x to perturb; default every floating leaf.

    Example:
        >>> x, y = Gaussian(0.1)(torch.zeros(4, 3, 8, 8), torch.zeros(4))
        >>> x.shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, sigma: float, *, key: Hashable | None = None) -> None:
        self.sigma, self.key = nonnegative("Gaussian", "sigma", sigma), key

    def draw(self, batch: Batch, generator: Generator | None) -> list[Tensor]:
        return [_normal(leaf, generator).mul_(self.sigma) for leaf in floating(batch[0], self.key, "Gaussian")]

    def apply(self, batch: Batch, draw: list[Tensor]) -> Batch:
        return add(batch, draw, self.key)


class UniformBall(Perturbation):
    """x' = x + u with u uniform in the ball of the given radius, drawn for every example. The draw is u.

    Args:
        radius: Radius of the ball.
        p: 2 for the Euclidean ball, math.inf for the cube.
        key: Which entry of x to perturb; default every floating leaf, each in a ball of its own.

    Example:
        >>> x, _ = UniformBall(0.5, p=2)(torch.zeros(4, 10))
        >>> bool((x.norm(dim=1) <= 0.5).all())
        True
    """

    def __init__(self, radius: float, *, p: float = 2, key: Hashable | None = None) -> None:
        self.radius, self.key = nonnegative("UniformBall", "radius", radius), key
        self.p = check_p(p)

    def draw(self, batch: Batch, generator: Generator | None) -> list[Tensor]:
        return [self._draw(leaf, generator) for leaf in floating(batch[0], self.key, "UniformBall")]

    def _draw(self, leaf: Tensor, generator: Generator | None) -> Tensor:
        if self.p == math.inf:
            return torch.empty_like(leaf).uniform_(-self.radius, self.radius, generator=generator)
        direction = _normal(leaf, generator)
        d = leaf[0].numel()
        u = torch.empty(len(leaf), dtype=leaf.dtype, device=leaf.device).uniform_(generator=generator)
        length = self.radius * u ** (1 / d)  # the share of the volume within r is (r / radius)^d
        return direction * column(length / norms(direction), leaf)

    def apply(self, batch: Batch, draw: list[Tensor]) -> Batch:
        return add(batch, draw, self.key)


def add(batch: Batch, noise: list[Tensor], key: Hashable | None) -> Batch:
    """Add noise to the chosen leaves of x."""
    x, y = batch
    return set_leaves(x, [leaf + n for leaf, n in zip(get_leaves(x, key), noise, strict=True)], key), y


def norms(x: Tensor) -> Tensor:
    """Euclidean norm of every example: (B, ...) -> (B,), never exactly zero, to divide by."""
    return x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)


def unit(x: Tensor) -> Tensor:
    """Every example at length 1, zero staying zero: (B, ...) -> (B, ...)."""
    largest = x.flatten(1).abs().amax(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    x = x / column(largest, x)  # or the squares of small numbers vanish, as those of a sure network's gradient do
    return x / column(norms(x), x)


def into_ball(x: Tensor, radius: float) -> Tensor:
    """For every example the nearest point of the l2 ball about 0: (B, ...) -> (B, ...)."""
    return x * column((radius / norms(x)).clamp(max=1), x)


def clamped(x: Tensor, delta: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """What is left of delta where x + delta keeps to (lowest, highest)."""
    return delta if clip is None else (x + delta).clamp(*clip) - x


def check_clip(who: str, clip: tuple[float, float] | None) -> tuple[float, float] | None:
    """Lowest and highest value, or None for no limit."""
    if clip is not None and None not in clip and not clip[0] < clip[1]:
        raise ValueError(f"{who}(clip={clip!r}): clip is (lowest, highest)")
    return clip


def check_p(p: float) -> float:
    """2 or infinity, the balls this project knows."""
    if p not in (2, math.inf):
        raise ValueError(f"p={p!r} is not a ball this project knows; use p=2 or p=math.inf")
    return p


def _normal(like: Tensor, generator: Generator | None) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


def floating(x: object, key: Hashable | None, who: str) -> list[Tensor]:
    """`pick`, where every tensor must be floating."""
    leaves = get_leaves(x, key)
    for leaf in leaves:
        if not leaf.is_floating_point():
            raise TypeError(
                f"{who} adds noise to floating tensors, but x holds {leaf.dtype}; scale images as in x.float() / 255, "
                "and for tokens perturb the embedding with FeatureNoise"
            )
    return leaves


def nonnegative(who: str, name: str, value: float) -> float:
    """A finite number, 0 or more."""
    return check_real(who, name, value, "a finite number, 0 or more", 0)

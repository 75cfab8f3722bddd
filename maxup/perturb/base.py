"""P(·|x), the distribution of perturbed copies: a thing that draws, and applies what it drew."""

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, Draw, get_leaves
from maxup.call_repr import call_repr


class Perturbation:
    """A distribution of perturbed copies, in two methods.

    Subclass it, or write any object with these two methods: `MaxUp` asks for nothing else. A subclass is an ordinary
    augmentation too: `x, y = perturbation(x, y)` draws once and applies.

    Example:
        >>> class Brightness(Perturbation):
        ...     def draw(self, batch, generator):
        ...         x, _ = batch
        ...         return torch.rand(len(x), generator=generator, device=x.device)
        ...     def apply(self, batch, draw):
        ...         x, y = batch
        ...         return x * (0.5 + draw.view(-1, 1)), y
        >>> x, y = Brightness()(torch.ones(8, 3), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3])
    """

    def draw(self, batch: Batch, generator: Generator | None) -> Draw:
        """Draw the random parameters of one copy of every example.

        Args:
            batch: The pair (x, y).
            generator: Where randomness comes from, on the batch's device; None is torch's global stream.

        Returns:
            A pytree of tensors on the batch's device whose first dimension is the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define draw(batch, generator)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        """Perturb the pair (x, y) as `draw` says: no randomness, and the batch itself unchanged."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(batch, draw)")

    def __call__(self, x: Any, y: Any = None, *, generator: Generator | None = None) -> Batch:
        return self.apply((x, y), self.draw((x, y), generator))

    def __repr__(self) -> str:
        return call_repr(self)


def images(x: Any, key: Hashable | None, who: str) -> list[Tensor]:
    """`get_leaves`, where every tensor must be images (B, C, H, W) of one size."""
    leaves = get_leaves(x, key)
    for leaf in leaves:
        if leaf.ndim != 4 or leaf.shape[-2:] != leaves[0].shape[-2:]:
            raise ValueError(
                f"{who} wants images of one size, (B, C, H, W), but x holds shape {tuple(leaf.shape)}; "
                "reshape it, or name the images with key="
            )
    return leaves


def uniform(size: tuple[int, ...], low: float, high: float, like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform floats in [low, high), at least float32, on the device of `like`."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.empty(size, dtype=dtype, device=like.device).uniform_(low, high, generator=generator)


def integers(size: tuple[int, ...], high: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform integers in [0, high) on the device of `like`."""
    return torch.randint(high, size, device=like.device, generator=generator)


@cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A table of numbers as a tensor. The first call on a device puts it there; later ones do not make it wait."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype).to(device)


def in_format_of(x: Tensor, like: Tensor) -> Tensor:
    """x with the memory format (channels_last or not) of `like`, which has the same shape."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)

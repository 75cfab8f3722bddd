"""The base class of perturbations, P(·|x), and what they share."""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, Draw, get_leaves
from maxup.call_repr import call_repr


class Perturbation:
    """A distribution of perturbed copies: `draw` samples the random parameters, `apply` uses them.

    Subclass it, or write any object with these two methods; `MaxUp` requires nothing else. A subclass is also an
    ordinary augmentation: `x, y = perturbation(x, y)` draws and applies once.

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
        """Draw the random parameters of one copy of each example.

        Args:
            batch: The pair (x, y).
            generator: Random generator on the batch's device. None uses torch's global generator.

        Returns:
            A pytree of tensors on the batch's device, with the batch as the first dimension.
        """
        raise NotImplementedError(f"{type(self).__name__} must define draw(batch, generator)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        """Return the pair (x, y) perturbed by `draw`. Deterministic; does not modify the batch in place."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(batch, draw)")

    def __call__(self, x: Any, y: Any = None, *, generator: Generator | None = None) -> Batch:
        return self.apply((x, y), self.draw((x, y), generator))

    def __repr__(self) -> str:
        return call_repr(self)


def remember_draws(perturbation: Any, generator: Generator) -> Callable[[], None]:
    """Return a function that goes back to where the draws are now, so that the next ones are the same again.

    Example:
        >>> from maxup import Gaussian
        >>> batch, generator = (torch.zeros(2, 3), None), torch.Generator()
        >>> rewind = remember_draws(Gaussian(1.0), generator)
        >>> first = Gaussian(1.0).draw(batch, generator)
        >>> rewind()
        >>> torch.equal(first[0], Gaussian(1.0).draw(batch, generator)[0])
        True
    """
    state, restore = generator.get_state(), [part.remember_draws() for part in parts_with_state(perturbation)]

    def rewind() -> None:
        generator.set_state(state)
        for one in restore:
            one()

    return rewind


def parts_with_state(perturbation: Any) -> list[Any]:
    """Return the parts of a perturbation whose draws do not depend on the generator alone, such as `Views`."""
    if hasattr(perturbation, "remember_draws"):
        return [perturbation]
    return [part for inner in getattr(perturbation, "perturbations", ()) for part in parts_with_state(inner)]


def images(x: Any, key: Hashable | None, who: str) -> list[Tensor]:
    """Return the tensors of x to perturb, which must be images (B, C, H, W) of one size."""
    leaves = get_leaves(x, key)
    for leaf in leaves:
        if leaf.ndim != 4 or leaf.shape[-2:] != leaves[0].shape[-2:]:
            raise ValueError(
                f"{who} expects images (B, C, H, W) of one size, but x holds a tensor of shape {tuple(leaf.shape)}; "
                "reshape it, or name the images with key="
            )
    return leaves


def uniform(size: tuple[int, ...], low: float, high: float, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw uniform floats in [low, high), in float32 or float64, on the device of `like`."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.empty(size, dtype=dtype, device=like.device).uniform_(low, high, generator=generator)


def integers(size: tuple[int, ...], high: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw uniform integers in [0, high) on the device of `like`."""
    return torch.randint(high, size, device=like.device, generator=generator)


def draw_seeds(size: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
    """Draw seeds of 62 bits on the device of `like`, as two integers of 31 bits: Apple's GPUs draw no larger ones."""
    high, low = integers((2, *size), 2**31 - 1, like, generator)
    return high * 2**31 + low


@cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a table of numbers as a tensor. It is copied to each device once, so later calls do not synchronize."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype).to(device)


def match_memory_format(x: Tensor, like: Tensor) -> Tensor:
    """Return x in the memory format of `like`, a tensor of the same shape."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)

"""P(·|x), the distribution of perturbed copies: a thing that draws, and applies what it drew."""

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from maxup.batch import Batch, Draw, is_batched
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


def pick(x: Any, key: Hashable | None = None) -> list[Tensor]:
    """The tensors of x to perturb: x itself, the entry named `key`, or else every floating leaf.

    Example:
        >>> [leaf.shape for leaf in pick({"pixels": torch.ones(2, 3), "ids": torch.zeros(2, dtype=torch.long)})]
        [torch.Size([2, 3])]
    """
    return [x] if isinstance(x, Tensor) and key is None else _split(x, key)[0]


def put(x: Any, leaves: list[Tensor], key: Hashable | None = None) -> Any:
    """x with the tensors that `pick` found replaced, in the same order."""
    if isinstance(x, Tensor) and key is None:
        return leaves[0]
    _, places, everything, spec = _split(x, key)
    for place, leaf in zip(places, leaves, strict=True):
        everything[place] = leaf
    return tree_unflatten(everything, spec)


def _split(x: Any, key: Hashable | None) -> tuple[list[Tensor], list[int], list[Any], Any]:
    everything, spec = tree_flatten(x)
    if key is not None:
        numbered = tree_unflatten(range(len(everything)), spec)  # a tensor may be twice in x: find places, not objects
        places = [i for i in _entry(x, key, numbered) if isinstance(everything[i], Tensor)]
    else:
        places = [i for i, leaf in enumerate(everything) if is_batched(leaf) and leaf.is_floating_point()]
    if not places:
        raise ValueError("x holds no floating tensor to perturb; name the entry to perturb with key=")
    return [everything[i] for i in places], places, everything, spec


def _entry(x: Any, key: Hashable, numbered: Any) -> list[int]:
    """Places of the leaves of x[key], where `numbered` is x with every leaf replaced by its place."""
    try:
        if isinstance(x, dict) and key not in x:  # a defaultdict would make the entry
            raise KeyError
        return tree_leaves(numbered[key])
    except (KeyError, IndexError, TypeError):
        there = f"the keys {list(x)}" if isinstance(x, dict) else f"a {type(x).__name__}"
        raise KeyError(f"key={key!r} names nothing in x, which is {there}; name the entry to perturb") from None


def images(x: Any, key: Hashable | None, who: str) -> list[Tensor]:
    """`pick`, where every tensor must be images (B, C, H, W) of one size."""
    leaves = pick(x, key)
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

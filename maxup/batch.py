"""What can be done with draws: keep some examples' from one and the rest from another, or put several side by side.

A draw is a pytree (tensor, tuple, dict, ...) of tensors whose first dimension is the batch. A leaf that one copy shares
between all its examples, such as a word mask over the vocabulary, is a `SharedDraw`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

Draw = Any
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class SharedDraw:
    """Values that whole copies share, and which of them each example uses.

    One copy's draw holds one value and an index of zeros; the winners of m copies hold all m values, and the index says
    which copy each example took.

    Attributes:
        values: (k, ...), one entry for every copy.
        index: (B,), the entry each example uses.
    """

    values: Tensor
    index: Tensor


def where(mask: Tensor, new: Draw, old: Draw) -> Draw:
    """Take the examples in `mask` from `new` and the others from `old`.

    Example:
        >>> where(torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor([3, 4]))
        tensor([1, 4])
    """

    def choose(n: Any, o: Any) -> Any:
        if isinstance(n, SharedDraw):
            taken = torch.where(mask, len(o.values) + n.index, o.index)
            return SharedDraw(torch.cat([o.values, n.values]), taken)
        if not is_batched(n) or len(n) != len(mask):
            raise TypeError(
                f"a draw holds {_describe(n)}; every leaf must be a tensor of the batch's {len(mask)} examples, "
                "or a SharedDraw for values that a whole copy shares"
            )
        return torch.where(column(mask, n), n, o)

    return tree_map(choose, new, old, is_leaf=_is_shared)


def cat(draws: Sequence[Draw]) -> Draw:
    """Join the draws of k batches into the draw of one batch k times as long.

    Example:
        >>> cat([torch.tensor([1, 2]), torch.tensor([3, 4])])
        tensor([1, 2, 3, 4])
    """

    def join(*parts: Any) -> Any:
        if isinstance(parts[0], SharedDraw):
            offsets = [sum(len(part.values) for part in parts[:i]) for i in range(len(parts))]
            index = torch.cat([part.index + offset for part, offset in zip(parts, offsets, strict=True)])
            return SharedDraw(torch.cat([part.values for part in parts]), index)
        return torch.cat(parts)

    return draws[0] if len(draws) == 1 else tree_map(join, *draws, is_leaf=_is_shared)


def tile(batch: Batch, copies: int) -> Batch:
    """Repeat a batch: (B, ...) -> (copies * B, ...), copy after copy."""
    if copies == 1:
        return batch
    return tree_map(lambda leaf: torch.cat([leaf] * copies) if is_batched(leaf) else leaf, batch)


def column(values: Tensor, like: Tensor) -> Tensor:
    """A value for every example, (B,), as (B, 1, ...) to meet a tensor of (B, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def is_batched(leaf: Any) -> bool:
    """Whether a leaf is a tensor with a first dimension, which then is the batch."""
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def _is_shared(leaf: Any) -> bool:
    return isinstance(leaf, SharedDraw)


def _describe(leaf: Any) -> str:
    return f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"


def leaves(batch: Batch) -> list[Tensor]:
    """The tensors of (x, y) that have a batch dimension."""
    plain = all(isinstance(part, Tensor | None) for part in batch)  # then there is no tree to walk
    return [leaf for leaf in (batch if plain else tree_leaves(batch)) if is_batched(leaf)]


def batch_size(batch: Batch) -> int:
    """The number of examples."""
    return len(leaves(batch)[0])


def get_leaves(x: Any, key: Hashable | None = None) -> list[Tensor]:
    """The tensors of x to perturb: x itself, the entry named `key`, or else every floating leaf.

    Example:
        >>> [leaf.shape for leaf in get_leaves({"pixels": torch.ones(2, 3), "ids": torch.zeros(2, dtype=torch.long)})]
        [torch.Size([2, 3])]
    """
    return [x] if isinstance(x, Tensor) and key is None else _split(x, key)[0]


def set_leaves(x: Any, leaves: list[Tensor], key: Hashable | None = None) -> Any:
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

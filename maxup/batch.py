"""Operations on batches and draws, which are pytrees of tensors: select per example, concatenate, tile, find leaves.

A draw is a pytree (tensor, tuple, dict, ...) of tensors whose first dimension is the batch. A leaf that all examples of
a copy share, such as a dropout mask over the vocabulary, is a `SharedDraw`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from maxup.errors import a_type

Draw = Any
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class SharedDraw:
    """Values that all examples of a copy share.

    For one copy: one value, index 0. After selection from m copies: m values, and `index` is the copy of each winner.

    Attributes:
        values: One value per copy, (k, ...).
        index: The value that each example uses, (B,).
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
            raise TypeError(_invalid(n, len(mask)))
        return torch.where(expand_like(mask, n), n, o)

    return tree_map(choose, new, old, is_leaf=_is_shared)


def take(draws: Sequence[Draw], chosen: Tensor) -> list[Draw]:
    """Choose from n draws per example: `chosen` (k, B) holds indices into `draws`. Return k draws.

    Example:
        >>> take([torch.tensor([1, 2]), torch.tensor([3, 4])], torch.tensor([[0, 1]]))
        [tensor([1, 4])]
    """
    rows = torch.arange(chosen.shape[1], device=chosen.device)

    def choose(*parts: Any) -> list[Any]:
        if isinstance(parts[0], SharedDraw):
            joined = cat(parts)
            index = joined.index.view(len(parts), -1)[chosen, rows]  # (k, B)
            return [SharedDraw(joined.values, one) for one in index]
        if not is_batched(parts[0]) or len(parts[0]) != len(rows):
            raise TypeError(_invalid(parts[0], len(rows)))
        return list(torch.stack(parts)[chosen, rows])

    flat = [tree_flatten(draw, is_leaf=_is_shared) for draw in draws]
    columns = [choose(*parts) for parts in zip(*(leaves for leaves, _ in flat), strict=True)]  # per leaf, k of them
    return [tree_unflatten([column[j] for column in columns], flat[0][1]) for j in range(len(chosen))]


def cat(draws: Sequence[Draw]) -> Draw:
    """Join the draws of k batches into the draw of one batch k times as long."""

    def join(*parts: Any) -> Any:
        if isinstance(parts[0], SharedDraw):
            values = {id(part.values): part.values for part in parts}  # parts that `take` returned share their values
            starts = dict(zip(values, accumulate(map(len, values.values()), initial=0), strict=False))
            index = torch.cat([part.index + starts[id(part.values)] for part in parts])
            return SharedDraw(torch.cat(list(values.values())), index)
        return torch.cat(parts)

    return draws[0] if len(draws) == 1 else tree_map(join, *draws, is_leaf=_is_shared)


def clone(draw: Draw) -> Draw:
    """Copy the tensors of a draw."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, SharedDraw):
            return SharedDraw(leaf.values.clone(), leaf.index.clone())
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return tree_map(copy, draw, is_leaf=_is_shared)


def tile(batch: Batch, copies: int) -> Batch:
    """Repeat a batch: (B, ...) -> (copies * B, ...), copy after copy."""
    if copies == 1:
        return batch
    return tree_map(lambda leaf: torch.cat([leaf] * copies) if is_batched(leaf) else leaf, batch)


def expand_like(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per example, (B,), to (B, 1, ...), to broadcast with a tensor (B, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the inner product per example, summed over leaves (B, ...): (B,).

    Example:
        >>> inner([torch.ones(2, 3), torch.ones(2)], [torch.ones(2, 3), torch.tensor([0.0, 5.0])])
        tensor([3., 8.])
    """
    return torch.stack([(u * v).reshape(len(u), -1).sum(1) for u, v in zip(a, b, strict=True)]).sum(0)


def is_batched(leaf: Any) -> bool:
    """Whether a leaf is a tensor with a batch dimension."""
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def _is_shared(leaf: Any) -> bool:
    return isinstance(leaf, SharedDraw)


def _invalid(leaf: Any, size: int) -> str:
    return (
        f"invalid draw: a leaf is {_describe(leaf)}; every leaf must be a tensor with batch size {size} first, or a "
        "SharedDraw for values that all examples share"
    )


def _describe(leaf: Any) -> str:
    return f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else a_type(leaf)


def leaves(batch: Batch) -> list[Tensor]:
    """Return the tensors of (x, y) that have a batch dimension."""
    plain = all(isinstance(part, Tensor | None) for part in batch)  # faster than walking a tree
    return [leaf for leaf in (batch if plain else tree_leaves(batch)) if is_batched(leaf)]


def batch_size(batch: Batch) -> int:
    """Return the number of examples."""
    return len(leaves(batch)[0])


def device_of(batch: Batch) -> torch.device:
    """Return the device of the first tensor."""
    return leaves(batch)[0].device


def get_leaves(x: Any, key: Hashable | None = None) -> list[Tensor]:
    """Return the tensors of x to perturb: the entry `key`, or by default x itself or its floating-point leaves."""
    return [x] if isinstance(x, Tensor) and key is None else _split(x, key)[0]


def set_leaves(x: Any, leaves: list[Tensor], key: Hashable | None = None) -> Any:
    """Return x with the tensors of `get_leaves(x, key)` replaced, in the same order."""
    if isinstance(x, Tensor) and key is None:
        return leaves[0]
    _, positions, all_leaves, spec = _split(x, key)
    for position, leaf in zip(positions, leaves, strict=True):
        all_leaves[position] = leaf
    return tree_unflatten(all_leaves, spec)


def _split(x: Any, key: Hashable | None) -> tuple[list[Tensor], list[int], list[Any], Any]:
    """Return the leaves to perturb, their positions, all leaves of x, and its tree structure."""
    all_leaves, spec = tree_flatten(x)
    if key is not None:
        numbered = tree_unflatten(range(len(all_leaves)), spec)  # positions, because x may hold a tensor twice
        positions = [i for i in _entry(x, key, numbered) if isinstance(all_leaves[i], Tensor)]
    else:
        positions = [i for i, leaf in enumerate(all_leaves) if is_batched(leaf) and leaf.is_floating_point()]
    if not positions:
        raise ValueError("x holds no floating-point tensor to perturb; pass key= to name the entry to perturb")
    return [all_leaves[i] for i in positions], positions, all_leaves, spec


def _entry(x: Any, key: Hashable, numbered: Any) -> list[int]:
    """Return the positions of the leaves of x[key]; `numbered` is x with every leaf replaced by its position."""
    try:
        if isinstance(x, dict) and key not in x:  # a defaultdict would create the entry
            raise KeyError
        return tree_leaves(numbered[key])
    except (KeyError, IndexError, TypeError):
        what = f"a dict with the keys {list(x)}" if isinstance(x, dict) else a_type(x)
        raise KeyError(f"key={key!r} is not in x, which is {what}; pass the key of the entry to perturb") from None

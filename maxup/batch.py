"""What can be done with draws: keep some examples' from one and the rest from another, or put several side by side.

A draw is a pytree (tensor, tuple, dict, ...) of tensors whose first dimension is the batch. A leaf that one copy shares
between all its examples, such as a word mask over the vocabulary, is a `Shared`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Draw = Any
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Shared:
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
        if isinstance(n, Shared):
            taken = torch.where(mask, len(o.values) + n.index, o.index)
            return Shared(torch.cat([o.values, n.values]), taken)
        if not is_batched(n) or len(n) != len(mask):
            raise TypeError(
                f"a draw holds {_describe(n)}; every leaf must be a tensor of the batch's {len(mask)} examples, "
                "or a Shared for values that a whole copy shares"
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
        if isinstance(parts[0], Shared):
            offsets = [sum(len(part.values) for part in parts[:i]) for i in range(len(parts))]
            index = torch.cat([part.index + offset for part, offset in zip(parts, offsets, strict=True)])
            return Shared(torch.cat([part.values for part in parts]), index)
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
    return isinstance(leaf, Shared)


def _describe(leaf: Any) -> str:
    return f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"

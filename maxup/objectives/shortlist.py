"""`MaxUp(shortlist=k)`: rank m copies to first order, and score only the k most promising ones.

    L(x'_i)  =  L(x) + <grad_x L(x), x'_i - x>  +  O(|x'_i - x|^2)

One forward and one backward pass give the gradient. Then ranking a copy needs no pass at all, so the cost is that of k
copies and one gradient, for any m.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from maxup.batch import Batch, Draw, get_leaves, inner, is_batched, set_leaves, where

SCALE = 2.0**10  # loss scale, as in torch.amp.GradScaler: small float16 gradients would underflow


class Shortlist:
    """Keep, per example, the draws of the k copies with the highest scores. Memory does not grow with m.

    Args:
        size: k, the number of copies to keep.

    Example:
        >>> kept = Shortlist(2)
        >>> for draw, score in ((10, 1.0), (11, 3.0), (12, 2.0)):
        ...     kept.update(torch.tensor([draw]), torch.tensor([score]))
        >>> kept.draws, kept.copies.tolist()
        ([tensor([12]), tensor([11])], [[2], [1]])
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self._kept: list[tuple[Draw, Tensor, Tensor]] = []  # draw, scores (B,) and index (B,) of each kept copy

    @property
    def draws(self) -> list[Draw]:
        """One draw per kept copy."""
        return [draw for draw, _, _ in self._kept]

    @property
    def scores(self) -> Tensor:
        """Scores of the kept copies, (k, B)."""
        return torch.stack([scores for _, scores, _ in self._kept])

    @property
    def copies(self) -> Tensor:
        """Indices of the kept copies among all copies, (k, B)."""
        return torch.stack([index for _, _, index in self._kept])

    def update(self, draw: Draw, scores: Tensor) -> None:
        """Add a copy with its scores, (B,). It replaces the kept copy with the lowest score, if that is lower."""
        new = draw, scores, torch.full_like(scores, self.seen, dtype=torch.long)
        self.seen += 1
        if len(self._kept) < self.size:
            self._kept.append(new)
            return
        lowest, slot = self.scores.min(0)  # (B,) each
        higher = scores > lowest  # (B,)
        self._kept = [where(higher & (slot == i), new, kept) for i, kept in enumerate(self._kept)]


class FirstOrder:
    """The losses of copies to first order, by the gradient of the loss at the unperturbed batch.

    Args:
        batch: The pair (x, y). The gradient is with respect to all leaves of x.
        forward: `forward(x) -> output`.
        losses: `losses(output, target) -> (B,)`.
    """

    def __init__(self, batch: Batch, forward: Callable[[Any], Any], losses: Callable[[Any, Any], Tensor]) -> None:
        x, y = batch
        if not all(is_batched(leaf) and leaf.is_floating_point() for leaf in tree_leaves(x)):
            raise TypeError("shortlist needs floating-point inputs, but x also holds other values; remove shortlist")
        self.x, self.losses = get_leaves(x), losses
        with torch.enable_grad():
            inputs = [leaf.detach().requires_grad_() for leaf in self.x]
            output = forward(set_leaves(x, inputs))
            loss = SCALE * losses(output, y).sum()
            gradients = torch.autograd.grad(loss, inputs, materialize_grads=True)
        self.gradients = [g.to(torch.promote_types(g.dtype, torch.float32)) / SCALE for g in gradients]
        self.output = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)

    def __call__(self, copy: Batch) -> Tensor:
        """Return the losses of a copy to first order, (B,)."""
        x, target = copy
        moved = []
        for leaf, origin in zip(get_leaves(x), self.x, strict=True):
            if leaf.shape != origin.shape:
                raise ValueError(
                    f"shortlist needs copies of the shape of x, {tuple(origin.shape)}, but a copy has shape "
                    f"{tuple(leaf.shape)}; remove shortlist"
                )
            moved.append(leaf - origin)
        return self.losses(self.output, target) + inner(moved, self.gradients)  # labels may be mixed

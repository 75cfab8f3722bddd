"""`MaxUp(shortlist=k)`: rank m copies to first order, and score only the k most promising ones.

    L(x'_i)  =  L(x) + <grad_x L(x), x'_i - x>  +  O(|x'_i - x|^2)

One forward and one backward pass give the gradient. Then ranking a copy needs no pass at all, so that a large m costs
little more than k copies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from maxup.batch import Batch, Draw, get_leaves, set_leaves, where

SCALE = 2.0**10  # of the loss, so that gradients in float16 do not become 0


class Shortlist:
    """Keep, per example, the draws of the k copies with the highest scores. Memory does not grow with m.

    Args:
        size: k, the number of copies to keep.

    Attributes:
        draws: One draw per kept copy, a list of k.
        scores: Their scores, (k, B).
        copies: Their indices among all copies, (k, B).

    Example:
        >>> kept = Shortlist(2)
        >>> for draw, score in ((10, 1.0), (11, 3.0), (12, 2.0)):
        ...     kept.update(torch.tensor([draw]), torch.tensor([score]))
        >>> kept.draws, kept.copies.tolist()
        ([tensor([12]), tensor([11])], [[2], [1]])
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.draws: list[Draw] = []
        self.scores = self.copies = torch.empty(0)

    def update(self, draw: Draw, score: Tensor) -> None:
        """Add a copy with its scores, (B,). It replaces the kept copy with the lowest score, if that is lower."""
        index = torch.full_like(score, self.seen, dtype=torch.long)  # (B,)
        self.seen += 1
        if len(self.draws) < self.size:
            first = not self.draws
            self.draws.append(draw)
            self.scores = score[None] if first else torch.cat([self.scores, score[None]])
            self.copies = index[None] if first else torch.cat([self.copies, index[None]])
            return
        lowest, slot = self.scores.min(0)  # (B,) each
        slots = torch.arange(self.size, device=slot.device)[:, None]
        replaced = (slots == slot) & (score > lowest)  # (k, B)
        self.draws = [where(mask, draw, kept) for mask, kept in zip(replaced, self.draws, strict=True)]
        self.scores = torch.where(replaced, score, self.scores)
        self.copies = torch.where(replaced, index, self.copies)


class FirstOrder:
    """The losses of copies to first order, by the gradient of the loss at the unperturbed batch.

    Args:
        batch: The pair (x, y). The gradient is by all floating-point leaves of x.
        forward: `forward(x) -> output`.
        losses: `losses(output, target) -> (B,)`.
    """

    def __init__(self, batch: Batch, forward: Callable[[Any], Any], losses: Callable[[Any, Any], Tensor]) -> None:
        x, y = batch
        if any(not leaf.is_floating_point() for leaf in get_leaves(x)):
            raise TypeError("shortlist ranks copies by the gradient of x, but x holds integers; remove shortlist")
        with torch.enable_grad():
            self.origin = [leaf.detach().requires_grad_() for leaf in get_leaves(x)]
            output = forward(set_leaves(x, self.origin))
            loss = SCALE * losses(output, y).sum()
            gradients = torch.autograd.grad(loss, self.origin, allow_unused=True, materialize_grads=True)
        self.gradients = [gradient / SCALE for gradient in gradients]
        self.output = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)
        self.losses = losses

    def __call__(self, copy: Batch) -> Tensor:
        """Return the losses of a copy to first order, (B,)."""
        x, target = copy
        losses = self.losses(self.output, target)  # labels may be mixed
        for leaf, origin, gradient in zip(get_leaves(x), self.origin, self.gradients, strict=True):
            if leaf.shape != origin.shape:
                raise ValueError(
                    f"shortlist compares copies with x, but x has shape {tuple(origin.shape)} and a copy "
                    f"{tuple(leaf.shape)}; remove shortlist"
                )
            losses = losses + ((leaf - origin.detach()) * gradient).flatten(1).sum(1)
        return losses

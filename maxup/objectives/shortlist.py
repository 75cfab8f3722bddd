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

from maxup.batch import Batch, Draw, get_leaves, inner, is_batched, set_leaves, take

SCALE = 2.0**10  # loss scale, as in torch.amp.GradScaler: small float16 gradients would underflow


class Shortlist:
    """Keep, per example, the draws of the k copies with the highest scores.

    Memory does not grow with m, except for `SharedDraw`, which keeps one value per copy.

    Args:
        size: k, the number of copies to keep.

    Example:
        >>> kept = Shortlist(2)
        >>> for draw, score in ((10, 1.0), (11, 3.0), (12, 2.0)):
        ...     kept.update(torch.tensor([draw]), torch.tensor([score]))
        >>> kept.draws, kept.copies.tolist()
        ([tensor([11]), tensor([12])], [[1], [2]])
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self._found: list[tuple[Draw, Tensor, Tensor]] = []  # draw, scores (B,) and index (B,), at most 2 k

    def update(self, draw: Draw, scores: Tensor) -> None:
        """Add a copy with its scores, (B,)."""
        self._found.append((draw, scores, torch.full_like(scores, self.seen, dtype=torch.long)))
        self.seen += 1
        if len(self._found) == 2 * self.size:
            self._prune()

    @property
    def draws(self) -> list[Draw]:
        """One draw per kept copy."""
        return [draw for draw, _, _ in self._prune()]

    @property
    def copies(self) -> Tensor:
        """Indices of the kept copies among all copies, (k, B)."""
        return torch.stack([index for _, _, index in self._prune()])

    def _prune(self) -> list[tuple[Draw, Tensor, Tensor]]:
        """Keep the k copies with the highest scores."""
        if len(self._found) > self.size:
            scores = torch.stack([scores for _, scores, _ in self._found])
            self._found = take(self._found, scores.topk(self.size, 0).indices)
        return self._found


class FirstOrder:
    """The losses of copies to first order, by the gradient of the loss at the unperturbed batch.

    Args:
        batch: The pair (x, y). The gradient is with respect to all leaves of x.
        forward: `forward(x) -> output`.
        losses: `losses(output, target) -> (B,)`.
    """

    def __init__(self, batch: Batch, forward: Callable[[Any], Any], losses: Callable[[Any, Any], Tensor]) -> None:
        x, self.y = batch
        self.x, self.losses, scale = get_leaves(x), losses, SCALE if _in_float16(x) else 1.0
        with torch.enable_grad():
            inputs = [leaf.detach().requires_grad_() for leaf in self.x]
            output = forward(set_leaves(x, [leaf.clone() for leaf in inputs]))  # the model may change its input
            clean = losses(output, self.y)  # (B,)
            found = torch.autograd.grad(scale * clean.sum(), inputs, allow_unused=True) if clean.requires_grad else []
        if all(gradient is None for gradient in found):
            raise ValueError(
                "shortlist needs the gradient of the loss with respect to x, but the model computes none; "
                "call it without torch.no_grad(), torch.inference_mode() and .detach(), or remove shortlist"
            )
        gradients = [torch.zeros_like(u) if g is None else g for u, g in zip(self.x, found, strict=True)]
        self.gradients = [g.to(torch.promote_types(g.dtype, torch.float32)) / scale for g in gradients]
        self.clean = clean.detach()
        self.output = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)

    def __call__(self, copy: Batch) -> Tensor:
        """Return the losses of a copy to first order, (B,)."""
        x, target = copy
        same = all(a is b for a, b in zip(tree_leaves(target), tree_leaves(self.y), strict=False))
        losses = self.clean if same else self.losses(self.output, target)  # labels may be mixed
        # Infinite values and gradients of leaves that do not change have no effect.
        moved = [
            torch.where(leaf == origin, 0, leaf - origin) for leaf, origin in zip(get_leaves(x), self.x, strict=True)
        ]
        gradients = [torch.where(change == 0, 0, g) for change, g in zip(moved, self.gradients, strict=True)]
        return losses + inner(moved, gradients)


def check_inputs(x: Any) -> None:
    """Raise unless x is floating point, which a gradient with respect to it needs."""
    if not all(is_batched(leaf) and leaf.is_floating_point() for leaf in tree_leaves(x)):
        kinds = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in tree_leaves(x)})
        raise TypeError(f"shortlist needs floating-point inputs, but x holds {', '.join(kinds)}; remove shortlist")


def check_same_shapes(x: Any, copy: Any) -> None:
    """Raise unless a copy has the structure and the shapes of x."""
    shapes = [[tuple(leaf.shape) for leaf in tree_leaves(part)] for part in (x, copy)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"shortlist needs copies of the shape of x, but x has {shapes[0]} and a copy {shapes[1]}; remove shortlist"
        )


def _in_float16(x: Any) -> bool:
    """Whether a pass computes gradients in float16, where small ones underflow."""
    device = tree_leaves(x)[0].device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    return autocast or any(leaf.dtype == torch.float16 for leaf in tree_leaves(x))

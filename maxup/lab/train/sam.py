"""Sharpness-aware minimization (SAM; Foret, Kleiner, Mobahi and Neyshabur, 2021), which composes with MaxUp.

    min_w  max_{|e| <= rho} L(w + e),    e = rho g / |g|,    g = grad L(w)

MaxUp looks for the worst copy of an example, SAM for the worst weights nearby. Together, SAM uses the loss of the
copies that MaxUp selected.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from maxup.isolation import preserve_state
from maxup.objectives.base import unwrap
from maxup.rng import remember_rng
from maxup.validate import is_capturing


def sam_backward(
    model: nn.Module, loss_fn: Callable[[], Tensor], backward: Callable[[Tensor], None], *, rho: float
) -> Tensor:
    """Compute the gradient of the loss at the worst weights nearby.

    Both passes use the same dropout masks. BatchNorm statistics and random states are those after the first pass.

    Args:
        model: The model, without gradients.
        loss_fn: Computes the loss at the current weights.
        backward: Backpropagates it.
        rho: Distance to the worst weights.

    Returns:
        The loss at the current weights.
    """
    weight = next(model.parameters())
    rewind = remember_rng([] if is_capturing(weight.device) else [weight.device])
    loss = loss_fn()
    backward(loss)
    with worst_weights(model, rho), preserve_state(unwrap(model), (weight, weight)):
        rewind()
        backward(loss_fn())
    return loss.detach()


@contextmanager
def worst_weights(model: nn.Module, rho: float) -> Iterator[None]:
    """Move the weights to w + rho g / |g| and clear the gradients; on exit, restore w exactly.

    The parameters must have the gradient of the loss at w.
    """
    moved = [(p, p.detach().clone(), p.grad) for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        norm = nn.utils.get_total_norm([gradient for _, _, gradient in moved])
        for p, _, gradient in moved:
            p.add_(gradient * (rho / (norm + 1e-12)))  # e of the equation
            p.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for p, before, _ in moved:
                p.copy_(before)

"""Sharpness-aware minimization (Foret, Kleiner, Mobahi and Neyshabur, 2021), a rival that composes with MaxUp.

    min_w  max_{|e| <= rho} L(w + e),    e = rho g / |g|,    g = grad L(w)

MaxUp looks for the worst copy of an example, SAM for the worst weights near the present ones; together, the second is
found for the copies that the first has chosen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from maxup.isolation import preserve_state
from maxup.objectives.base import bare
from maxup.rng import remember_rng
from maxup.validate import is_capturing


def sharp(model: nn.Module, loss: Callable[[], Tensor], backward: Callable[[Tensor], None], *, rho: float) -> Tensor:
    """Leave the gradient of the loss at the worst weights near, under the first pass's dropout masks.

    BatchNorm records the first pass only, and random streams are left where it left them.

    Args:
        model: What is trained, without gradients.
        loss: Computes the loss with the weights of now.
        backward: Back-propagates it.
        rho: How near.

    Returns:
        The loss with the weights as they are.

    Example:
        >>> line = nn.Linear(1, 1, bias=False)
        >>> x = torch.ones(4, 1)
        >>> _ = sharp(line, lambda: line(x).pow(2).mean() / 2, Tensor.backward, rho=0.5)
        >>> bool(line.weight.grad.abs() > line.weight.abs())  # that of a steeper point
        True
    """
    weight = next(model.parameters())  # says which device
    rewind = remember_rng([] if is_capturing(weight.device) else [weight.device])
    first = loss()
    backward(first)
    with climbed(model, rho), preserve_state(bare(model), (weight, weight)):
        rewind()
        backward(loss())
    return first.detach()


@contextmanager
def climbed(model: nn.Module, rho: float) -> Iterator[None]:
    """Inside, the weights are at w + rho g / |g| and gradients are cleared; afterwards, at w again, to the last bit.

    Args:
        model: Its parameters have the gradient of the loss at w.
        rho: How far to climb.

    Example:
        >>> line = nn.Linear(1, 1, bias=False)
        >>> before = line.weight.item()
        >>> line(torch.ones(1)).backward()
        >>> with climbed(line, 0.5):
        ...     print(round(line.weight.item() - before, 4), line.weight.grad)
        0.5 None
        >>> line.weight.item() == before
        True
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

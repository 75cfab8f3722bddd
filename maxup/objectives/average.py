"""Standard augmentation with m copies: MaxUp with the average instead of the maximum.

min_theta  E_x [ 1/m sum_{i <= m} L(x'_i, theta) ],    x'_1 ... x'_m ~ P(.|x) i.i.d.    (eq. 5)
"""

from collections.abc import Callable
from typing import Any

from torch import Generator

from maxup.objectives.base import Forward, LossFn, Objective, Outcome, call_model, cross_entropy
from maxup.perturb.in_model import check_attached
from maxup.validate import check_perturbation


class Average(Objective):
    """The average over m perturbed copies. It backpropagates through all of them, so it needs m times the memory.

    The copies form one wide batch, so BatchNorm normalizes them together and updates its statistics once. The outcome's
    output, target and losses cover all m * B copies.

    Args:
        perturbation: P(.|x), an object with `draw(batch, generator)` and `apply(batch, draw)`.
        m: Copies per example, or a function of the step that returns it.
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.
        generator: Source of the draws. Default: a new one, seeded by `torch.manual_seed`.

    Example:
        >>> import torch
        >>> from maxup import Gaussian
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> Average(Gaussian(0.1), m=4)(model, x, y).backward()
    """

    def __init__(
        self,
        perturbation: Any,
        m: int | Callable[[int], int] = 4,
        *,
        forward: Forward = call_model,
        loss_fn: LossFn = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(check_perturbation(perturbation), m, loss_fn=loss_fn, forward=forward, generator=generator)

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """Return the loss of eq. 5."""
        with self._step(x, y) as (batch, generator):
            check_attached(self.perturbation, model)
            draws = self._draws(batch, generator, self.copies())
            output, target, losses = self._forward(model, batch, draws)  # (m * B, ...)
            return Outcome(self._mean(losses, target), losses, output, target)

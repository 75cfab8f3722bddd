"""Online hard example mining (Shrivastava et al., 2016): the maximum over examples, not over copies of one example.

min_theta  E_M [ max_{x in M} L(x, theta) ]
"""

from typing import Any

from maxup.batch import batch_size
from maxup.objectives.base import Forward, LossFn, Objective, Outcome, call_model, cross_entropy
from maxup.validate import ABOVE_0, check_real


class HardExamples(Objective):
    """The mean loss of the hardest examples of a batch. The other examples contribute no gradient.

    Args:
        keep: Fraction of the batch to train on, in (0, 1]. At least one example is kept.
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.

    Example:
        >>> import torch
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> HardExamples(keep=0.25)(model, x, y).backward()
    """

    def __init__(self, keep: float = 0.25, *, forward: Forward = call_model, loss_fn: LossFn = cross_entropy) -> None:
        super().__init__(loss_fn=loss_fn, forward=forward)
        self.keep = check_real("HardExamples", "keep", keep, "a fraction of the batch, in (0, 1]", ABOVE_0, 1)

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """Return the mean loss of the hardest examples, with the output and target of the full batch."""
        with self._step(x, y) as (batch, _):
            x, y = batch
            output = self.forward(model, x)
            losses = self._losses(output, y, batch_size(batch))
            hardest = losses.topk(max(1, round(self.keep * len(losses)))).values
            return Outcome(hardest.mean(), hardest, output, y)

"""`MaxUp(fast=True)`: how it scores copies, and how its selection compares with exact scoring."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from maxup.batch import Batch, leaves
from maxup.errors import error_message
from maxup.isolation import drop_probability
from maxup.objectives.running_max import RunningMax
from maxup.validate import is_capturing, warn

FAST_COPIES = 4  # copies per pass
HALVE_FROM = 96  # height and width from which images are scored at half their size
CHECK_EVERY = 500  # steps between two comparisons with exact scoring


class FastScoring:
    """Score large images at half their size, and other inputs with running statistics and several copies per pass.

    Attributes:
        halves: Whether the model takes images of half the size. None: not tried yet.
    """

    def __init__(self) -> None:
        self.halves: bool | None = None

    def score(
        self,
        score: Callable[..., RunningMax],
        model: nn.Module,
        batch: Batch,
        generator: Generator,
        *,
        chunk_size: int,
        compile: bool,
    ) -> RunningMax:
        """Score the copies of a batch.

        Args:
            score: `score(norm, chunk_size, compile=, half=)` draws copies and scores them.
            model: The model.
            batch: The batch.
            generator: Source of the draws. It is rewound if the model fails at half the size.
            chunk_size: Fewest copies per pass.
            compile: Compile the passes, also on a CPU.
        """
        device = leaves(batch)[0].device
        compile, wide = compile or device.type == "cuda", max(chunk_size, FAST_COPIES)
        if compile and any(module.training and drop_probability(module) > 0 for module in model.modules()):
            wide = 1  # compiled passes over several copies cannot share dropout masks
        if self.halves is False or not is_large(batch[0]) or (self.halves is None and is_capturing(device)):
            return score("running", wide, compile=compile)
        before = None if self.halves else generator.get_state()
        try:
            worst = score("batch", 1, compile=compile, half=True)  # running statistics are those of the full size
        except (RuntimeError, ValueError, AssertionError) as error:
            if before is None or isinstance(error, torch.OutOfMemoryError):
                raise
            generator.set_state(before)
            worst = score("running", wide, compile=compile)  # fails again if the size is not the reason
            self.halves = False
            warn(
                "fast=True scores images at full size, because the model failed on images of half the size: "
                f"{error_message(error)}"
            )
            return worst
        self.halves = True
        return worst


def is_large(x: Any) -> bool:
    """Whether x are images (B, C, H, W) that are large enough to be scored at half their size."""
    return isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point() and min(x.shape[2:]) >= HALVE_FROM


def halve(x: Tensor) -> Tensor:
    """Return images (B, C, H, W) at half their height and width: the averages of 2 x 2 pixels.

    Example:
        >>> halve(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[[[4.]]]])
    """
    return F.avg_pool2d(x, 2)


def share_of_gap(scores: list[Tensor], copy: Tensor) -> Tensor:
    """Return how much of the gap between the worst and the mean copy a selection keeps.

    Args:
        scores: Scores of the copies by exact scoring, m tensors (B,).
        copy: Index of the selected copy of every example, (B,).

    Returns:
        A scalar: 1 if the selected copies are as bad as the worst ones, 0 if they are average, NaN if all copies tie.

    Example:
        >>> share_of_gap([torch.tensor([1.0, 5.0]), torch.tensor([3.0, 8.0])], torch.tensor([1, 0]))
        tensor(-0.2000)
    """
    exact = torch.stack(scores).float()  # (m, B)
    chosen, mean = exact.gather(0, copy[None])[0], exact.mean(0)  # (B,) each
    return (chosen - mean).sum() / (exact.max(0).values - mean).sum()

"""`MaxUp(fast=True)`: how it scores copies, and how its selection compares with exact scoring."""

from collections.abc import Callable
from functools import partial
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
        halves: Whether images can be scored at half the size. None: not tried yet.
        wide: Whether several copies can be scored in one pass.
    """

    def __init__(self) -> None:
        self.halves: bool | None = None
        self.wide = True

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
            generator: Source of the draws. It is rewound before copies are scored in another way.
            chunk_size: Copies per pass at full size, raised to at least 4.
            compile: Compile the passes, also on a CPU.
        """
        device = leaves(batch)[0].device
        compile = compile or (device.type == "cuda" and not _has_compiled_parts(model))
        wide = max(chunk_size, FAST_COPIES)
        if compile and any(module.training and drop_probability(module) > 0 for module in model.modules()):
            wide = 1  # compiled passes over several copies cannot share dropout masks
        full_size = partial(self._score_full_size, partial(score, "running", compile=compile), wide, batch, generator)
        if self.halves is False or not is_large(batch[0]) or (self.halves is None and is_capturing(device)):
            return full_size()
        before = None if self.halves else generator.get_state()
        try:
            worst = score("batch", 1, compile=compile, half=True)  # running statistics are those of the full size
        except (RuntimeError, ValueError, AssertionError) as error:
            if before is None or isinstance(error, torch.OutOfMemoryError):
                raise
            generator.set_state(before)
            worst = full_size()  # fails again if the size is not the reason
            self.halves = False
            warn(f"fast=True scores images at full size, because half the size failed: {error_message(error)}")
            return worst
        self.halves = True
        return worst

    def _score_full_size(
        self, score: Callable[..., RunningMax], wide: int, batch: Batch, generator: Generator
    ) -> RunningMax:
        """Score several copies per pass, or one if copies cannot share the random numbers of the model."""
        if not self.wide:
            return score(1)
        if wide == 1 or is_capturing(leaves(batch)[0].device):
            return score(wide)
        before = generator.get_state()
        try:
            return score(wide)
        except ValueError:
            generator.set_state(before)
            worst = score(1)  # fails again if the number of copies is not the reason
            self.wide = False
            return worst


def _has_compiled_parts(model: nn.Module) -> bool:
    """Whether a model is TorchScript, or is compiled in place: it, or a part of it."""
    return any(isinstance(m, torch.jit.ScriptModule) or m._compiled_call_impl is not None for m in model.modules())


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

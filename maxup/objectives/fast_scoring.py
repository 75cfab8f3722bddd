"""`MaxUp(fast=True)`: how it scores copies, and how its selection compares with exact scoring."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup.batch import Batch, device_of
from maxup.errors import error_message
from maxup.objectives.running_max import RunningMax
from maxup.scoring import is_compiled
from maxup.validate import warn

FAST_COPIES = 4  # copies per pass on a GPU; wide passes are not faster on a CPU
HALVE_FROM = 96  # height and width from which images are scored at half their size
CHECK_EVERY = 500  # steps between two comparisons with exact scoring


@dataclass(frozen=True)
class Scoring:
    """How copies are scored. The first four are as in `MaxUp`."""

    norm: str
    chunk_size: int
    dropout: bool
    compile: bool
    half: bool = False
    """At half the height and width."""


Key = tuple[Scoring, tuple[int, ...] | None]  # with the size of an image, if it is halved


class FastScoring:
    """Score with running statistics and without dropout, and large images at half their size.

    On a GPU, passes are compiled and take several copies. What a model cannot do is not tried again: half the size of
    an image, several copies in one pass, or compiling.
    """

    def __init__(self) -> None:
        self.works: set[Key] = set()
        self.failed: set[Key] = set()
        self.no_compiler = False

    def score(
        self,
        score: Callable[[Scoring], RunningMax],
        model: nn.Module,
        batch: Batch,
        rewind: Callable[[], None] | None,
        *,
        chunk_size: int,
        compile: bool,
        may_halve: bool,
    ) -> RunningMax:
        """Score the copies of a batch.

        Args:
            score: Draws copies and scores them in a given way.
            model: The model.
            batch: The batch.
            rewind: Goes back to the first draw, to score the same copies in another way. None in a CUDA graph.
            chunk_size: Copies per pass, raised to at least 4 on a GPU.
            compile: Compile the passes, also on a CPU.
            may_halve: Whether copies are the same at half the size.
        """
        x, on_gpu = batch[0], device_of(batch).type == "cuda"
        may_fail = on_gpu and not (compile or self.no_compiler or _compiles_poorly(model))
        ways = [
            Scoring("running", copies, dropout=False, compile=compiled, half=half)
            for half in ((True, False) if may_halve and is_large(x) else (False,))
            for compiled in ((True, False) if may_fail else (compile,))
            for copies in dict.fromkeys((max(chunk_size, FAST_COPIES) if on_gpu else chunk_size, 1))
        ]
        keys: dict[Scoring, Key] = {how: (how, tuple(x.shape[2:]) if how.half else None) for how in ways}
        if rewind is None:  # there is no second try
            ways = [how for how in ways if keys[how] in self.works or not how.half]
        errors: dict[Scoring, Exception] = {}
        for how in ways:
            if keys[how] in self.failed:
                continue
            try:
                worst = score(how)
                break
            except (RuntimeError, ValueError, AssertionError, LookupError, TypeError) as error:
                if rewind is None or how == ways[-1] or isinstance(error, torch.OutOfMemoryError):
                    raise
                errors[how] = error
                rewind()
        self.works.add(keys[how])
        self.failed |= {keys[tried] for tried in errors}  # another way works, so the way is the reason
        halves = [error for tried, error in errors.items() if tried.half]
        if halves and not how.half:
            warn(f"fast=True scores images at full size, because half the size failed: {error_message(halves[-1])}")
        compiled_ones = [error for tried, error in errors.items() if tried.half == how.half and tried.compile]
        if compiled_ones and not how.compile:  # Triton may not work here
            self.no_compiler = True
            why = error_message(compiled_ones[-1])
            warn(f"fast=True scores copies without compiling, because compiling failed: {why}")
        return worst


def _compiles_poorly(model: nn.Module) -> bool:
    """Whether a model is TorchScript, or only parts of it are compiled: then compiling all of it may take long."""
    parts = [m for m in model.modules() if m._compiled_call_impl is not None]
    return any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()) or bool(parts and not is_compiled(model))


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

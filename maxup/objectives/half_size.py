"""Score images at half their size, a quarter of the pixels: approximate, and checked against exact scoring."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.errors import error_message

CHECK_EVERY = 500  # steps between two comparisons with exact scoring


def halve(x: Any) -> Tensor:
    """Return images (B, C, H, W) at half their height and width: the averages of 2 x 2 pixels.

    Example:
        >>> halve(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[[[4.]]]])
    """
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point() or min(x.shape[2:]) < 2:
        what = f"has shape {tuple(x.shape)} and {x.dtype}" if isinstance(x, Tensor) else f"is a {type(x).__name__}"
        raise ValueError(
            f"fast=True needs float images (B, C, H, W) of at least 2 x 2 pixels, but x {what}; remove fast=True"
        )
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


@contextmanager
def explain_size() -> Iterator[None]:
    """Explain an error of a model that does not accept images of half the size."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"fast=True calls the model with images of half the size, and the model failed: {error_message(error)}; "
            "remove fast=True, or use a network that accepts images of any size"
        ) from error

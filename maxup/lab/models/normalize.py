"""Normalization inside the model: what it takes is pixels, and its mean and deviation travel with its weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalized(nn.Module):
    """(x - mean) / std, then the model. Both are buffers, so that a checkpoint and the code cannot disagree on them.

    Args:
        model: Takes normalized images.
        mean: Of each channel, of pixels in [0, 1].
        std: Likewise.

    Example:
        >>> Normalized(nn.Identity(), mean=[0.5], std=[0.25])(torch.ones(1, 1, 1, 1))
        tensor([[[[2.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.model((x - self.mean) / self.std)

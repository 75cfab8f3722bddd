"""Normalization inside the model. The model takes pixels, and its weights include mean and std."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalized(nn.Module):
    """Apply (x - mean) / std, then the model. `mean` and `std` are buffers, so they are part of every checkpoint.

    Args:
        model: A model that takes normalized images.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel, of pixels in [0, 1].
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

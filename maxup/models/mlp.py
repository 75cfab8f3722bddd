"""A multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from maxup.checks import check_whole


def mlp(shape: Sequence[int], classes: int, hidden: tuple[int, ...] | list[int] = (512, 512)) -> nn.Sequential:
    """Flatten the image, then hidden layers with ReLU.

    Example:
        >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
        301066
    """
    widths = [prod(shape), *(check_whole("hidden", width) for width in hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

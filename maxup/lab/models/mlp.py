"""A multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated

from torch import nn

from maxup.errors import format_value
from maxup.lab.limits import SIZE


def mlp(shape: Sequence[int], num_classes: int, hidden: Sequence[Annotated[int, SIZE]] = (512, 512)) -> nn.Sequential:
    """Flatten the image, then apply hidden layers with ReLU.

    Example:
        >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
        301066
    """
    if not isinstance(hidden, list | tuple):
        raise ValueError(f"hidden={format_value(hidden)} must be a list of widths, such as [512, 512]")
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

"""A small convolutional network for digits, Fashion-MNIST and tests."""

from collections.abc import Sequence
from typing import Annotated

from torch import nn

from maxup.lab.limits import DROP, WIDTH


def conv(
    shape: Sequence[int], num_classes: int, width: Annotated[int, WIDTH] = 32, dropout: Annotated[float, DROP] = 0.0
) -> nn.Sequential:
    """Three 3x3 convolutions with BatchNorm and ReLU, the last two with stride 2, then global average pooling.

    Example:
        >>> conv((1, 8, 8), 10)[-1].out_features
        10
    """
    layers: list[nn.Module] = []
    inputs = shape[0]
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs, num_classes)
    )

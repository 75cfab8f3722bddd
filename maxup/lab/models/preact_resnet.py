"""Pre-activation ResNets for small images (He et al., 2016b): BatchNorm and ReLU before each convolution."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from maxup.lab.limits import DEPTH
from maxup.lab.models.resnet import blocks_of_stage, conv3x3, he_normal


def preact_resnet(shape: Sequence[int], num_classes: int, depth: Annotated[int, DEPTH] = 20) -> "PreActResNet":
    """Build a pre-activation ResNet with 6n + 2 layers.

    Example:
        >>> sum(p.numel() for p in preact_resnet((3, 32, 32), 10, depth=110).parameters())
        1730522
    """
    return PreActResNet(shape[0], num_classes, blocks_of_stage(depth, 2), (16, 32, 64))


class PreActBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))). If the shape changes, the shortcut is a 1x1 conv of the first relu."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), conv3x3(outputs, outputs)
        shape_changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if shape_changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(out)
        return x + self.conv2(F.relu(self.norm2(self.conv1(out))))


class PreActResNet(nn.Module):
    """A convolution to 16 channels, three stages of blocks, BatchNorm, ReLU, global average pooling, a linear layer."""

    def __init__(self, channels: int, num_classes: int, blocks: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.conv = conv3x3(channels, 16)
        layers, inputs = [], 16
        for outputs, first in zip(widths, (1, 2, 2), strict=True):
            for i in range(blocks):
                layers.append(PreActBlock(inputs, outputs, first if i == 0 else 1))
                inputs = outputs
        self.blocks, self.norm = nn.Sequential(*layers), nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, num_classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.conv(x))))  # (B, widths[-1], H / 4, W / 4)
        return self.head(x.mean((2, 3)))


preact_resnet20, preact_resnet56, preact_resnet110 = (partial(preact_resnet, depth=d) for d in (20, 56, 110))

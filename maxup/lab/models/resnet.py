"""ResNets for small images (He, Zhang, Ren and Sun, 2016): 6n + 2 layers, three stages of n basic blocks."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from maxup.cuda.fused import conv_norm_relu, is_supported
from maxup.lab.limits import DEPTH, WIDTH


def resnet(
    shape: Sequence[int], num_classes: int, depth: Annotated[int, DEPTH] = 20, width: Annotated[int, WIDTH] = 16
) -> "ResNet":
    """Build a ResNet with 6n + 2 layers. Every stage after the first doubles the channels and halves the resolution.

    Example:
        >>> sum(p.numel() for p in resnet((3, 32, 32), 10, depth=110).parameters())
        1730714
    """
    return ResNet(shape[0], num_classes, blocks_of_stage(depth, 2), width)


def blocks_of_stage(depth: int, outside: int) -> int:
    """Return n, the number of blocks per stage, of a network with 6n + `outside` layers."""
    if depth < 6 + outside or (depth - outside) % 6:
        smallest = ", ".join(str(6 * n + outside) for n in (1, 2, 3))
        raise ValueError(f"depth={depth} is invalid; it must be 6n + {outside}, such as {smallest}")
    return (depth - outside) // 6


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias. Stride 1 keeps the resolution."""
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def he_normal(model: nn.Module) -> None:
    """Initialize convolutions from N(0, 2 / (k^2 * outputs)). BatchNorm keeps its defaults."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Block(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))). If the shape changes, the shortcut is a 1x1 conv with BatchNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride > 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        if is_supported(x, (self.conv1, self.conv2), (self.norm1, self.norm2)):
            out = conv_norm_relu(x, self.conv1, self.norm1)
            return conv_norm_relu(out, self.conv2, self.norm2, x if self.shortcut is None else self.shortcut(x))
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """A convolution, three stages of blocks, global average pooling and a linear layer."""

    def __init__(self, channels: int, num_classes: int, blocks: int, width: int) -> None:
        super().__init__()
        self.conv, self.norm = conv3x3(channels, width), nn.BatchNorm2d(width)
        layers, inputs = [], width
        for outputs, first in ((width, 1), (2 * width, 2), (4 * width, 2)):
            for i in range(blocks):
                layers.append(Block(inputs, outputs, first if i == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, num_classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))  # (B, 4 * width, H / 4, W / 4)
        return self.head(x.mean((2, 3)))


resnet20, resnet32, resnet44, resnet56, resnet110 = (partial(resnet, depth=d) for d in (20, 32, 44, 56, 110))

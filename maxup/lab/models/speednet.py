"""A small network that trains on CIFAR-10 in seconds, after public speed records.

K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, and the work it builds on: a whitening layer, GELU,
max pooling, BatchNorm without trained scales, and convolutions that start as the identity.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup.errors import format_value
from maxup.lab.limits import WIDTH, Limit

KERNEL = 2  # height and width of the whitened patches
LOGIT_SCALE = 1 / 9


def speednet(
    shape: Sequence[int],
    num_classes: int,
    widths: Sequence[Annotated[int, WIDTH]] = (64, 256, 256),
    depth: Annotated[int, Limit(1, 100, whole=True)] = 2,
) -> "SpeedNet":
    """Build the network. Each width adds a block, which halves the resolution and has `depth` convolutions.

    Example:
        >>> sum(p.numel() for p in speednet((3, 32, 32), 10).parameters() if p.requires_grad)
        1971352
    """
    if not isinstance(widths, list | tuple) or not widths:
        raise ValueError(f"widths={format_value(widths)} must be a list of widths, such as [64, 256, 256]")
    least = 2 ** len(widths) + KERNEL - 1
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"{len(widths)} blocks need images (C, H, W) of at least {least} x {least} pixels, but your examples have "
            f"shape {tuple(shape)}; use fewer widths"
        )
    return SpeedNet(shape[0], num_classes, widths, depth)


class Norm(nn.BatchNorm2d):
    """BatchNorm with a trained bias and a scale of 1. Its running statistics follow the weights quickly."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)


class Block(nn.Module):
    """Convolutions with BatchNorm and GELU, the first with max pooling. With 3 or more, a shortcut skips the others."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(identity_conv(inputs if i == 0 else outputs, outputs) for i in range(depth))
        self.norms = nn.ModuleList(Norm(outputs) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x = F.gelu(self.norms[0](F.max_pool2d(self.convs[0](x), 2)))
        for i in range(1, len(self.convs)):
            x = self.norms[i](self.convs[i](x))
            last = i == len(self.convs) - 1
            x = F.gelu(x + shortcut if last and i > 1 else x)
        return x


def identity_conv(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first outputs are initially the inputs. The others start at random."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:inputs])
    return layer


class SpeedNet(nn.Module):
    """Whitening, blocks, global max pooling, and a linear layer. `init_from_images` computes the whitening."""

    def __init__(self, channels: int, num_classes: int, widths: Sequence[int], depth: int) -> None:
        super().__init__()
        inputs = 2 * channels * KERNEL**2
        self.whiten = nn.Conv2d(channels, inputs, KERNEL)
        self.whiten.weight.requires_grad_(False)
        nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]  # not None
        self.blocks = nn.Sequential(*(Block(*pair, depth) for pair in zip([inputs, *widths[:-1]], widths, strict=True)))
        self.head = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.gelu(self.whiten(x)))
        x = F.adaptive_max_pool2d(x, 1).flatten(1)  # not amax: compiled, its gradient is NaN in half precision
        return self.head(x) * LOGIT_SCALE

    def init_from_images(self, images: Tensor) -> None:
        """Set the fixed weights of the first layer from normalized training images, (N, C, H, W)."""
        filters = whitening(images, KERNEL).to(self.whiten.weight)
        self.whiten.weight.data.copy_(torch.cat([filters, -filters]))


def whitening(images: Tensor, kernel: int, eps: float = 5e-4) -> Tensor:
    """Return filters whose responses to the images are uncorrelated and have mean square 1, except for eps.

    The filters are the eigenvectors of the second moments of all patches, the largest first: (C * k * k, C, k, k).
    """
    size = images.shape[1] * kernel**2
    moments, count = torch.zeros(size, size, dtype=torch.double), 0
    for part in images.split(500):
        patches = F.unfold(part.float(), kernel).transpose(1, 2).flatten(0, 1)  # (patches, C * k * k)
        moments += (patches.T @ patches).cpu().double()
        count += len(patches)
    values, vectors = torch.linalg.eigh(moments / count)
    filters = (vectors / (values + eps).sqrt()).T.flip(0)
    return filters.reshape(size, images.shape[1], kernel, kernel).float()

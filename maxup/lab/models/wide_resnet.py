"""Wide ResNets (Zagoruyko and Komodakis, 2016): pre-activation ResNets with 6n + 4 layers, without dropout."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from maxup.lab.limits import DEPTH, WIDTH
from maxup.lab.models.preact_resnet import PreActResNet
from maxup.lab.models.resnet import blocks_of_stage


def wide_resnet(
    shape: Sequence[int], num_classes: int, depth: Annotated[int, DEPTH] = 16, width: Annotated[int, WIDTH] = 4
) -> PreActResNet:
    """Build a WRN-depth-width, `width` times as wide as a ResNet.

    Example:
        >>> sum(p.numel() for p in wide_resnet((3, 32, 32), 10, depth=28, width=10).parameters())
        36479194
    """
    return PreActResNet(shape[0], num_classes, blocks_of_stage(depth, 4), (16 * width, 32 * width, 64 * width))


wrn16_4, wrn40_2, wrn28_10 = (partial(wide_resnet, depth=d, width=w) for d, w in ((16, 4), (40, 2), (28, 10)))

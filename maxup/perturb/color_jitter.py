"""Color jitter: brightness, contrast and saturation, each changed at random, in random order."""

from collections.abc import Hashable, Sequence

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.perturb.base import uniform
from maxup.perturb.noise import nonnegative
from maxup.perturb.operations import gray, leave
from maxup.perturb.pixels import Pixels


class ColorJitter(Pixels):
    """Multiply brightness, contrast and saturation by factors uniform in [1 - s, 1 + s], not below 0.

    As torchvision's on floating images: each step cuts off at 0 and 1. The draw is `order`, (B, 3), the steps 0
    brightness, 1 contrast, 2 saturation, and `factor`, (B, 3), of the steps by their number.

    Args:
        brightness: s of the brightness; 0.4 is that of the usual ImageNet recipe, here and below.
        contrast: s of the contrast.
        saturation: s of the saturation, which a gray image has none of.
        mean: Mean that was subtracted from the channels of pixels in [0, 1]; the default is for images in [0, 1].
        std: What they were divided by then.
        key: Which entry of x holds the images; default every floating leaf, all with one draw.

    Example:
        >>> x, y = ColorJitter(0.4, 0.4, 0.4)(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        brightness: float = 0.4,
        contrast: float = 0.4,
        saturation: float = 0.4,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, key=key)
        self.brightness = nonnegative("ColorJitter", "brightness", brightness)
        self.contrast = nonnegative("ColorJitter", "contrast", contrast)
        self.saturation = nonnegative("ColorJitter", "saturation", saturation)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        like = self._images(batch[0])[0]
        order = uniform((len(like), 3), 0, 1, like, generator).argsort(dim=1)
        spread = (self.brightness, self.contrast, self.saturation)
        factors = [uniform((len(like),), max(0.0, 1 - s), 1 + s, like, generator) for s in spread]
        return {"order": order, "factor": torch.stack(factors, dim=1)}

    def change(self, pixels: Tensor, draw: dict[str, Tensor]) -> Tensor:
        for step in draw["order"].T:
            factor = draw["factor"].gather(1, step[:, None]).to(pixels.dtype).view(-1, 1, 1, 1)
            step = step.view(-1, 1, 1, 1)
            shades = gray(pixels)
            other = torch.where(step == 2, shades, torch.where(step == 1, shades.mean((1, 2, 3), keepdim=True), 0))
            pixels = leave(pixels, other, factor - 1, 1)
        return pixels

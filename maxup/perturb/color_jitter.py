"""Color jitter: random changes of brightness, contrast and saturation, in random order."""

from collections.abc import Hashable, Sequence

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.perturb.base import uniform
from maxup.perturb.noise import check_nonnegative
from maxup.perturb.operations import extrapolate, gray
from maxup.perturb.pixels import Pixels


class ColorJitter(Pixels):
    """Scale brightness, contrast and saturation by factors that are uniform in [max(0, 1 - s), 1 + s].

    Matches torchvision on floating-point images: each step clips to [0, 1]. The draw is `order`, (B, 3), the order of
    the steps (0 brightness, 1 contrast, 2 saturation), and `factor`, (B, 3), the factor of each step.

    Args:
        brightness: s for the brightness. Default: 0.4, as in the usual ImageNet recipe.
        contrast: s for the contrast. Default: 0.4.
        saturation: s for the saturation. Default: 0.4. Has no effect on gray images.
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

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
        self.brightness = check_nonnegative("ColorJitter", "brightness", brightness)
        self.contrast = check_nonnegative("ColorJitter", "contrast", contrast)
        self.saturation = check_nonnegative("ColorJitter", "saturation", saturation)

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
            pixels = extrapolate(pixels, other, factor - 1, 1)
        return pixels

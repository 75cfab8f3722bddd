"""The base class of RandAugment, TrivialAugment and AutoAugment, and their tables of magnitudes."""

from collections.abc import Hashable, Iterator, Sequence
from functools import cache, partial

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.perturb.base import integers
from maxup.perturb.geometry import sources
from maxup.perturb.masks import change_masks, check_fill_fits, take
from maxup.perturb.operations import NUMBER, inverse_map, operate
from maxup.perturb.pixels import Pixels
from maxup.validate import check_mask_fill


class Policy(Pixels):
    """Apply k operations in sequence to each image. Subclasses define `draw`.

    The draw is `operation`, (B, k) indices into `operations.OPERATIONS`, and `magnitude`, (B, k), in the units of each
    operation. Images are first rounded to 256 levels, so that results match torchvision's on uint8 images. Integer
    masks in y move with the images.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], *, mask_fill: int, key: Hashable | None
    ) -> None:
        super().__init__(mean, std, key=key)
        self.mask_fill = check_mask_fill(self._name, mask_fill)

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        size = self._images(batch[0])[0].shape[-2:]
        y = change_masks(batch, self.key, size, partial(self._move, draw=draw), self._name)
        return super().apply(batch, draw)[0], y

    def change(self, pixels: Tensor, draw: dict[str, Tensor]) -> Tensor:
        levels = (255 * pixels).round().clamp(0, 255).float()
        for operation, magnitude in _steps(draw):
            levels = operate(levels, operation, magnitude)
        return levels.to(pixels.dtype) / 255

    def _move(self, masks: Tensor, draw: dict[str, Tensor]) -> Tensor:
        check_fill_fits(self._name, self.mask_fill, masks)
        for operation, magnitude in _steps(draw):
            inverse = inverse_map(operation, magnitude, *masks.shape[-2:])
            masks = take(masks, sources(inverse, masks), self.mask_fill)
        return masks


def _steps(draw: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the operation and magnitude of each step, (B,) each."""
    return zip(draw["operation"].unbind(1), draw["magnitude"].unbind(1), strict=True)


@cache
def magnitudes(
    bins: int, shear: float, right: float, down: float, angle: float, enhance: float, bits: int, device: torch.device
) -> Tensor:
    """Return the magnitudes of all operations, from none to full strength: (operations, bins).

    Args:
        bins: Number of magnitudes.
        shear: Largest slope.
        right: Largest translation to the right, in pixels.
        down: Largest translation down, in pixels.
        angle: Largest angle, in degrees.
        enhance: Largest change of brightness, color, contrast and sharpness.
        bits: Largest number of bits, of 8, that Posterize removes.
        device: Device of the table. The result is cached, so it is copied there once.
    """
    table = torch.zeros(len(NUMBER), bins)
    largest = {
        "ShearX": shear, "ShearY": shear, "TranslateX": right, "TranslateY": down, "Rotate": angle,
        "Brightness": enhance, "Color": enhance, "Contrast": enhance, "Sharpness": enhance,
    }  # fmt: skip
    for name, value in largest.items():
        table[NUMBER[name]] = torch.linspace(0, value, bins)
    table[NUMBER["Posterize"]] = 8 - (torch.arange(bins) / ((bins - 1) / bits)).round()
    table[NUMBER["Solarize"]] = torch.linspace(255, 0, bins)
    return table.to(device)


def paper_magnitudes(bins: int, like: Tensor) -> Tensor:
    """Return the magnitudes of AutoAugment and RandAugment for images of the size of `like`."""
    height, width = like.shape[-2:]
    return magnitudes(bins, 0.3, 150 / 331 * width, 150 / 331 * height, 30, 0.9, 4, like.device)


def signed(operation: Tensor, magnitude: Tensor, generator: Generator | None) -> Tensor:
    """Give magnitudes a random sign if the operation takes one."""
    sign = 2 * integers(tuple(operation.shape), 2, operation, generator) - 1
    takes_sign = (operation >= NUMBER["ShearX"]) & (operation <= NUMBER["Sharpness"])
    return torch.where(takes_sign, sign * magnitude, magnitude)

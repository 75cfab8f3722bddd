"""Small rotations and translations."""

from collections.abc import Hashable

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, set_leaves
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import Perturbation, images, match_memory_format, uniform
from maxup.perturb.geometry import sources, warp
from maxup.perturb.masks import change_masks, check_fill_fits, take
from maxup.validate import check_mask_fill, check_real


class Affine(Perturbation):
    """Rotate each image about its center, then translate it. Uses bilinear interpolation with zero padding.

    The draw is `angle`, (B,), in degrees counter-clockwise, and `shift`, (B, 2), in pixels down and to the right.

    Args:
        degrees: Angles are uniform in [-degrees, degrees].
        translate: Largest shift, as a fraction of the height and of the width. Shifts are uniform.
        mask_fill: Label for pixels from outside the image in integer masks (B, H, W) in y. Masks move with the images
            (nearest interpolation). Default: -100, which `F.cross_entropy` ignores.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = Affine(degrees=10, translate=0.1)(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        degrees: float = 10.0,
        *,
        translate: float = 0.1,
        mask_fill: int = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        self.degrees = check_real("Affine", "degrees", degrees, "between 0 and 180", 0, 180)
        self.translate = check_real("Affine", "translate", translate, "a fraction of the image, between 0 and 1", 0, 1)
        self.mask_fill, self.key = check_mask_fill("Affine", mask_fill), key

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = images(batch[0], self.key, "Affine")[0]
        n = len(leaf)
        limits = [self.translate * size for size in leaf.shape[-2:]]  # down, right
        shift = torch.stack([uniform((n,), -limit, limit, leaf, generator) for limit in limits], dim=1)
        return {"angle": uniform((n,), -self.degrees, self.degrees, leaf, generator), "shift": shift}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, _ = batch
        leaves = images(x, self.key, "Affine")
        if not all(leaf.is_floating_point() for leaf in leaves):
            raise TypeError(
                f"Affine interpolates, so images must be floating point, not {leaves[0].dtype}; use .float()"
            )
        inverse = _inverse(draw["angle"], draw["shift"])

        def move(masks: Tensor) -> Tensor:
            check_fill_fits("Affine", self.mask_fill, masks)
            return take(masks, sources(inverse, leaves[0]), self.mask_fill)

        y = change_masks(batch, self.key, leaves[0].shape[-2:], move, "Affine")
        moved = [warp(leaf, inverse, mode="bilinear").to(leaf.dtype) for leaf in leaves]
        return set_leaves(
            x, [match_memory_format(new, leaf) for new, leaf in zip(moved, leaves, strict=True)], self.key
        ), y


def _inverse(angle: Tensor, shift: Tensor) -> list[Tensor]:
    """Return the map from an output pixel to its source: undo the shift, then rotate back."""
    down, right = shift.unbind(1)
    cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
    return [cos, -sin, -(cos * right - sin * down), sin, cos, -(sin * right + cos * down)]

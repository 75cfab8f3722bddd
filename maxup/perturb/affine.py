"""Small rotations and translations."""

from collections.abc import Hashable

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, set_leaves
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import Perturbation, images, in_format_of, uniform
from maxup.perturb.geometry import sources, warp
from maxup.perturb.masks import change_masks, check_fill_fits, take
from maxup.validate import check_mask_fill, check_real


class Affine(Perturbation):
    """Rotate every image about its center, then shift it; bilinear, zeros outside.

    The draw is `angle`, (B,) degrees counter-clockwise, and `shift`, (B, 2) pixels down and to the right.

    Args:
        degrees: Angles are uniform in [-degrees, degrees].
        translate: Shifts are uniform up to this fraction of the height and of the width.
        mask_fill: Label of pixels that come from outside in integer masks (B, H, W) in y, which move with the images;
            they take the nearest label.
        key: Which entry of x holds the images; default every floating leaf, all with one draw.

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
        reach = [self.translate * size for size in leaf.shape[-2:]]
        shift = torch.stack([uniform((n,), -limit, limit, leaf, generator) for limit in reach], dim=1)
        return {"angle": uniform((n,), -self.degrees, self.degrees, leaf, generator), "shift": shift}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, _ = batch
        leaves = images(x, self.key, "Affine")
        if not all(leaf.is_floating_point() for leaf in leaves):
            raise TypeError(f"Affine interpolates, so images must be floating, not {leaves[0].dtype}; use .float()")
        inverse = _inverse(draw["angle"], draw["shift"])

        def move(masks: Tensor) -> Tensor:
            check_fill_fits("Affine", self.mask_fill, masks)
            return take(masks, sources(inverse, leaves[0]), self.mask_fill)

        y = change_masks(batch, self.key, leaves[0].shape[-2:], move, "Affine")
        moved = [warp(leaf, inverse, mode="bilinear").to(leaf.dtype) for leaf in leaves]
        return set_leaves(x, [in_format_of(new, leaf) for new, leaf in zip(moved, leaves, strict=True)], self.key), y


def _inverse(angle: Tensor, shift: Tensor) -> list[Tensor]:
    """Where an output pixel comes from: undo the shift, then rotate back."""
    down, right = shift.unbind(1)
    cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
    return [cos, -sin, -(cos * right - sin * down), sin, cos, -(sin * right + cos * down)]

"""Cutout (DeVries and Taylor, 2017), the perturbation of the paper's CIFAR experiments."""

from collections.abc import Hashable
from functools import partial

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, set_leaves
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import Perturbation, images, integers
from maxup.perturb.masks import change_masks, check_fill_fits
from maxup.validate import check_fill, check_int, check_mask_fill


class Cutout(Perturbation):
    """Fill one square per image. Its center is uniform over the pixels, and it is clipped at the border.

    The draw is `center`, (B, 2) integers: row and column. The square starts `length // 2` pixels before its center. For
    even `length` this matches the original implementation; for odd `length` the original is one pixel smaller.

    Args:
        length: Side of the square in pixels. The paper uses 16 on CIFAR-10 and 8 on CIFAR-100.
        fill: Value of the square. 0 is the mean color of normalized images.
        mask_fill: Label of the square in integer masks (B, H, W) in y. Default: -100, so that `F.cross_entropy` ignores
            what the network cannot see. None leaves y unchanged.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = Cutout(2)(torch.ones(1, 1, 4, 4), torch.zeros(1))
        >>> int(x.sum()) in (12, 14, 15)  # a full square, or one clipped at the border
        True
    """

    def __init__(
        self,
        length: int,
        *,
        fill: float = 0.0,
        mask_fill: int | None = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        self.length = check_int("Cutout", "length", length, 1, " of pixels")
        self.fill, self.key = check_fill("Cutout", fill), key
        self.mask_fill = None if mask_fill is None else check_mask_fill("Cutout", mask_fill)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = images(batch[0], self.key, "Cutout")[0]
        rows, columns = (integers((len(leaf),), size, leaf, generator) for size in leaf.shape[-2:])
        return {"center": torch.stack([rows, columns], dim=1)}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, y = batch
        leaves = images(x, self.key, "Cutout")
        start = draw["center"] - self.length // 2
        size = leaves[0].shape[-2:]
        hole = boxes(torch.cat([start, start + self.length], dim=1), *size)
        if self.mask_fill is not None:
            ignore = partial(self._ignore, hole=hole)
            y = change_masks(batch, self.key, size, ignore, "Cutout", hint="; mask_fill=None leaves y unchanged")
        return set_leaves(x, [leaf.clone().masked_fill_(hole, self.fill) for leaf in leaves], self.key), y

    def _ignore(self, masks: Tensor, hole: Tensor) -> Tensor:
        assert self.mask_fill is not None
        check_fill_fits("Cutout", self.mask_fill, masks)
        return torch.where(hole, torch.full_like(masks, self.mask_fill), masks)


def boxes(corners: Tensor, height: int, width: int) -> Tensor:
    """Return masks of boxes: (B, 4) top, left, bottom, right (the last two exclusive) -> (B, 1, H, W) booleans."""
    pixels = torch.arange(max(height, width), device=corners.device)
    start, stop = corners.reshape(-1, 2, 2, 1).unbind(1)  # (B, 2, 1), for rows and columns
    inside = (start <= pixels) & (pixels < stop)
    return (inside[:, 0, :height, None] & inside[:, 1, None, :width])[:, None]

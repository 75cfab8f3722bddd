"""Random crop and horizontal flip, the standard CIFAR augmentation, drawn per example."""

from collections.abc import Hashable
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from maxup.batch import Batch, set_leaves
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import Perturbation, images, integers, match_memory_format
from maxup.perturb.masks import change_masks, check_fill_fits, take
from maxup.validate import check_fill, check_int, check_mask_fill


class CropFlip(Perturbation):
    """Pad each image, crop it back to its size at a random offset, and flip it horizontally with probability 1/2.

    The draw is `offset`, (B, 2) integers in 0 ... 2 * padding, the row and column of the crop in the padded image, and
    `flip`, (B,) booleans.

    Args:
        padding: Number of pixels added on each side.
        flip: Whether to flip images at all.
        fill: Value of the padding. 0 is the mean color of normalized images.
        mask_fill: Label of the padding in integer masks (B, H, W) in y. Masks are cropped and flipped with the images.
            Default: -100, which `F.cross_entropy` ignores.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = CropFlip(padding=4)(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        padding: int = 4,
        *,
        flip: bool = True,
        fill: float = 0.0,
        mask_fill: int = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        if not isinstance(flip, bool):
            raise ValueError(f"CropFlip(flip={flip!r}): flip must be True or False")
        self.padding = check_int("CropFlip", "padding", padding, 0, " of pixels")
        self.flip, self.fill, self.key = flip, check_fill("CropFlip", fill), key
        self.mask_fill = check_mask_fill("CropFlip", mask_fill)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = images(batch[0], self.key, "CropFlip")[0]
        offset = integers((len(leaf), 2), 2 * self.padding + 1, leaf, generator)
        flip = integers((len(leaf),), 2, leaf, generator) == 1
        return {"offset": offset, "flip": flip & self.flip}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, _ = batch
        leaves = images(x, self.key, "CropFlip")
        height, width = leaves[0].shape[-2:]
        device = draw["offset"].device
        column = torch.arange(width, device=device)
        column = torch.where(draw["flip"][:, None], column.flip(0), column)  # (B, W) in the crop
        rows = draw["offset"][:, :1] + torch.arange(height, device=device)  # (B, H) in the padded image
        columns = draw["offset"][:, 1:] + column  # (B, W)
        move = partial(self._move, rows=rows - self.padding, columns=columns - self.padding)
        y = change_masks(batch, self.key, (height, width), move, "CropFlip")
        return set_leaves(x, [self._gather(leaf, rows, columns) for leaf in leaves], self.key), y

    def _move(self, masks: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        if self.padding:
            check_fill_fits("CropFlip", self.mask_fill, masks)
        height, width = masks.shape[-2:]
        rows, columns = rows[:, :, None], columns[:, None, :]  # in the image
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)  # (B, H, W)
        return take(masks, torch.where(inside, rows * width + columns, -1), self.mask_fill)

    def _gather(self, leaf: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        padded = F.pad(leaf, [self.padding] * 4, value=self.fill)
        example = torch.arange(len(leaf), device=leaf.device)[:, None, None]
        crops = padded.movedim(1, -1)[example, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
        return match_memory_format(crops.movedim(-1, 1), leaf)

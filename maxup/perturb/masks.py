"""Targets with a place in the image: integer masks follow the pixels, and what cannot follow is refused."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from maxup.batch import Batch
from maxup.perturb.base import in_format_of

Size = tuple[int, ...]  # height and width


def is_mask(leaf: Any, size: Size) -> bool:
    """Whether a leaf is an integer or boolean tensor with one value per pixel: (B, H, W) or (B, N, H, W).

    Example:
        >>> is_mask(torch.zeros(2, 8, 8, dtype=torch.uint8), (8, 8)), is_mask(torch.zeros(2, 8, 8), (8, 8))
        (True, False)
    """
    if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.is_complex():
        return False
    return leaf.ndim > 2 and leaf.shape[-2:] == size


def is_spatial(leaf: Any) -> bool:
    """Whether a target may have a place in the image: maps, boxes and keypoints have three dimensions or more."""
    return isinstance(leaf, Tensor) and (leaf.ndim > 2 or is_tv_tensor(leaf))


def is_tv_tensor(leaf: Any) -> bool:
    """Whether a tensor is one of torchvision's tv_tensors: boxes, a mask, keypoints, an image."""
    return type(leaf).__module__.startswith("torchvision.tv_tensors")


def change_masks(
    batch: Batch, key: Hashable | None, size: Size, change: Callable[[Tensor], Tensor], who: str, *, hint: str = ""
) -> Any:
    """Return y with its masks changed. Targets (B,) and (B, K) stay; other maps, boxes and keypoints are refused.

    Args:
        batch: The pair (x, y).
        key: The entry of x with the images, or None. Without it, a mask in x is refused, since only y is changed.
        size: Height and width of the images.
        change: Function from masks (B, N, H, W) to new ones of the same shape.
        who: Name of the perturbation, for errors.
        hint: Another way out of the refusal.

    Example:
        >>> y = {"mask": torch.tensor([[[0, 1]]]), "class": torch.tensor([7])}
        >>> change_masks((None, y), None, (1, 2), lambda masks: masks.flip(-1), "Flip")
        {'mask': tensor([[[1, 0]]]), 'class': tensor([7])}
    """
    x, y = batch
    for leaf in tree_leaves(x) if key is None and not isinstance(x, Tensor) else ():
        if is_mask(leaf, size):
            raise ValueError(
                f"{who} changes the floating images in x, but x also holds {leaf.dtype} of shape {tuple(leaf.shape)}, "
                "which would stay; move masks to y"
            )

    def changed(leaf: Any) -> Any:
        if not is_spatial(leaf):
            return leaf
        if not is_mask(leaf, size):
            raise ValueError(
                f"{who} changes images and integer masks of their size {tuple(size)}, but y holds {leaf.dtype} of "
                f"shape {tuple(leaf.shape)}; change both in a function of yours with Transform(..., labels=True), or "
                f"flatten a target that has no place in the image to (B, K){hint}"
            )
        masks = leaf.unsqueeze(1).flatten(1, -3)  # (B, N, H, W)
        return in_format_of(change(masks).reshape(leaf.shape), leaf)

    return changed(y) if isinstance(y, Tensor) else tree_map(changed, y)


def take(masks: Tensor, sources: Tensor, fill: int) -> Tensor:
    """Give every pixel the label of its source.

    Args:
        masks: (B, N, H, W).
        sources: Places in the flattened image, (B, H, W); a pixel with a negative one gets `fill`.
        fill: Label of pixels from outside the image.

    Example:
        >>> take(torch.tensor([[[[5, 6, 7]]]]), torch.tensor([[[2, 0, -1]]]), -100)
        tensor([[[[   7,    5, -100]]]])
    """
    examples, layers = (torch.arange(n, device=masks.device) for n in masks.shape[:2])
    sources = sources.flatten(1)[:, None]  # (B, 1, H * W)
    moved = masks.flatten(2)[examples[:, None, None], layers[:, None], sources.clamp_min(0)]
    return torch.where(sources < 0, torch.full_like(moved, fill), moved).view(masks.shape)


def check_fill_fits(who: str, fill: int, masks: Tensor) -> None:
    """Refuse a label that does not fit the masks' type."""
    low, high = (0, 1) if masks.dtype == torch.bool else (torch.iinfo(masks.dtype).min, torch.iinfo(masks.dtype).max)
    if not low <= fill <= high:
        raise ValueError(
            f"{who}(mask_fill={fill}): y holds {masks.dtype} masks, which cannot hold {fill}; use y.long(), or set "
            f"mask_fill= to a label from {low} to {high}"
        )

"""Spatial targets: integer masks move with the images; other spatial targets raise an error."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from maxup.batch import Batch
from maxup.perturb.base import match_memory_format

Size = tuple[int, ...]  # height and width


def is_mask(leaf: Any, size: Size) -> bool:
    """Whether a leaf is an integer or boolean tensor with one value per pixel, (B, H, W) or (B, N, H, W).

    Example:
        >>> is_mask(torch.zeros(2, 8, 8, dtype=torch.uint8), (8, 8)), is_mask(torch.zeros(2, 8, 8), (8, 8))
        (True, False)
    """
    if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.is_complex():
        return False
    return leaf.ndim > 2 and leaf.shape[-2:] == size


def is_spatial(leaf: Any) -> bool:
    """Whether a target may be spatial: maps, boxes and keypoints have three dimensions or more."""
    return isinstance(leaf, Tensor) and (leaf.ndim > 2 or is_tv_tensor(leaf))


def is_tv_tensor(leaf: Any) -> bool:
    """Whether a tensor is a torchvision tv_tensor: boxes, a mask, keypoints or an image."""
    return type(leaf).__module__.startswith("torchvision.tv_tensors")


def change_masks(
    batch: Batch, key: Hashable | None, size: Size, change: Callable[[Tensor], Tensor], who: str, *, hint: str = ""
) -> Any:
    """Return y with its masks changed. Targets (B,) and (B, K) stay unchanged.

    Raises a ValueError for float maps, boxes and keypoints, which cannot be changed.

    Args:
        batch: The pair (x, y).
        key: Entry of x that holds the images, or None. If it is None, a mask in x is an error, since only y is changed.
        size: Height and width of the images.
        change: Maps masks (B, N, H, W) to new masks of the same shape.
        who: Name of the perturbation, for error messages.
        hint: Further advice for the error message.

    Example:
        >>> y = {"mask": torch.tensor([[[0, 1]]]), "class": torch.tensor([7])}
        >>> change_masks((None, y), None, (1, 2), lambda masks: masks.flip(-1), "Flip")
        {'mask': tensor([[[1, 0]]]), 'class': tensor([7])}
    """
    x, y = batch
    for leaf in tree_leaves(x) if key is None and not isinstance(x, Tensor) else ():
        if is_mask(leaf, size):
            raise ValueError(
                f"{who} changes the floating-point images in x, but x also holds {leaf.dtype} of shape "
                f"{tuple(leaf.shape)}, which would stay unchanged; move masks to y"
            )

    def changed(leaf: Any) -> Any:
        if not is_spatial(leaf):
            return leaf
        if not is_mask(leaf, size):
            raise ValueError(
                f"{who} changes images and integer masks of size {tuple(size)}, but y holds {leaf.dtype} of shape "
                f"{tuple(leaf.shape)}; change both in your function with Transform(..., labels=True), or flatten a "
                f"target that is not spatial to (B, K){hint}"
            )
        masks = leaf.unsqueeze(1).flatten(1, -3)  # (B, N, H, W)
        return match_memory_format(change(masks).reshape(leaf.shape), leaf)

    return changed(y) if isinstance(y, Tensor) else tree_map(changed, y)


def take(masks: Tensor, sources: Tensor, fill: int) -> Tensor:
    """Return masks in which each pixel has the label of its source.

    Args:
        masks: (B, N, H, W).
        sources: Indices into the flattened image, (B, H, W). Pixels with a negative index get `fill`.
        fill: Label for pixels from outside the image.

    Example:
        >>> take(torch.tensor([[[[5, 6, 7]]]]), torch.tensor([[[2, 0, -1]]]), -100)
        tensor([[[[   7,    5, -100]]]])
    """
    examples, layers = (torch.arange(n, device=masks.device) for n in masks.shape[:2])
    sources = sources.flatten(1)[:, None]  # (B, 1, H * W)
    moved = masks.flatten(2)[examples[:, None, None], layers[:, None], sources.clamp_min(0)]
    return torch.where(sources < 0, torch.full_like(moved, fill), moved).view(masks.shape)


def check_fill_fits(who: str, fill: int, masks: Tensor) -> None:
    """Raise if the dtype of the masks cannot hold the label `fill`."""
    low, high = (0, 1) if masks.dtype == torch.bool else (torch.iinfo(masks.dtype).min, torch.iinfo(masks.dtype).max)
    if not low <= fill <= high:
        raise ValueError(
            f"{who}(mask_fill={fill}): y holds {masks.dtype} masks, which cannot hold {fill}; use y.long(), or set "
            f"mask_fill= to a label from {low} to {high}"
        )

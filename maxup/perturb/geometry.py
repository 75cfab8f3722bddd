"""Affine warps with one map per image."""

import torch
from torch import Tensor
from torch.nn import functional as F


def warp(images: Tensor, inverse: list[Tensor], *, mode: str) -> Tensor:
    """Warp each image by its affine map, with zeros outside.

    Coordinates are in pixels, right of and below the center. The grid is computed without a matrix product, which
    autocast would round to half precision: neighboring pixels of a large image would then coincide.

    Args:
        images: Floating-point images, (B, C, H, W).
        inverse: a, b, c, d, e, f, each (B,): the pixel at (u, v) comes from (a u + b v + c, d u + e v + f).
        mode: "nearest" or "bilinear".
    """
    height, width = images.shape[-2:]
    dtype = torch.promote_types(images.dtype, torch.float32)
    a, b, c, d, e, f = (number.to(dtype).view(-1, 1, 1) for number in inverse)
    u, v = (torch.arange(n, device=images.device, dtype=dtype) - (n - 1) / 2 for n in (width, height))
    right, down = a * u + b * v[:, None] + c, d * u + e * v[:, None] + f  # (B, H, W)
    grid = torch.stack([right / (width / 2), down / (height / 2)], dim=-1)  # in half widths and half heights
    return F.grid_sample(images.to(dtype), grid, mode=mode, padding_mode="zeros", align_corners=False)


def sources(inverse: list[Tensor], like: Tensor) -> Tensor:
    """Return the indices of the pixels that `warp(like, inverse, mode="nearest")` reads.

    They come from warping an image of coordinates, so ties are broken as for an image of the same dtype.

    Args:
        inverse: The map, as in `warp`.
        like: Images, (B, C, H, W).

    Returns:
        Indices into the flattened image, (B, H, W). Negative if the source is outside the image.

    Example:
        >>> one, zero = torch.ones(1), torch.zeros(1)
        >>> sources([one, zero, one, zero, one, zero], torch.rand(1, 3, 1, 3))
        tensor([[[ 1,  2, -4]]])
    """
    batch, _, height, width = like.shape
    dtype = torch.promote_types(like.dtype, torch.float32)
    # 0 means outside
    rows, columns = (torch.arange(1, n + 1, device=like.device, dtype=dtype) for n in (height, width))
    coordinates = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(batch, 2, height, width)
    row, column = warp(coordinates, inverse, mode="nearest").long().unbind(1)
    return (row - 1) * width + column - 1

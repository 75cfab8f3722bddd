"""The fifteen AutoAugment operations (Cubuk et al., 2019) on a batch, with one operation and magnitude per example.

Images are levels: integers 0 ... 255 stored as float32. Results are rounded down, as torchvision does for uint8. The
code never synchronizes with the device: all examples go through the same three steps, and each step changes only the
examples whose operation it implements.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.perturb.geometry import warp

OPERATIONS = (
    "Identity",
    # The magnitudes of these may be negative:
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    # The magnitudes of these have no sign:
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}


def operate(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Apply one operation to each image.

    Args:
        levels: Integers 0 ... 255 as floats, (B, C, H, W), C = 1 or 3.
        operation: Indices into `OPERATIONS`, (B,).
        magnitude: Magnitudes, (B,). Shears: slope. Translations: pixels right or down, rounded toward zero. Rotate:
            degrees counter-clockwise. Brightness, Color, Contrast, Sharpness: factor - 1. Posterize: bits to keep.
            Solarize: lowest level to invert. The other operations ignore it.

    Returns:
        New levels. Geometric operations use nearest interpolation and fill with black.
    """
    levels = warp(levels, inverse_map(operation, magnitude, *levels.shape[-2:]), mode="nearest")
    operation = operation.view(-1, 1, 1, 1)
    magnitude = magnitude.to(levels.dtype).view(-1, 1, 1, 1)
    levels = _enhance(levels, operation, magnitude)
    return _look_up(levels, operation, magnitude)


def gray(images: Tensor) -> Tensor:
    """Return the luminance of images: (B, C, H, W) -> (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def extrapolate(images: Tensor, other: Tensor, amount: Tensor, top: float) -> Tensor:
    """Return images + amount * (images - other), clipped to [0, top].

    In this form, an amount of 0 or a pixel that equals `other` gives the exact pixel, which rounding down preserves.
    """
    return (images + amount * (images - other)).clamp(0, top)


def _only(name: str, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Return the magnitude for examples with this operation, and 0 for the others."""
    return torch.where(operation == NUMBER[name], magnitude, 0)


def inverse_map(operation: Tensor, magnitude: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the map for `warp` that shears (about the corner), translates or rotates: six tensors (B,)."""
    magnitude = magnitude.float()
    names = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    shear_x, shear_y, right, down, angle = (_only(name, operation, magnitude) for name in names)
    cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
    c, f = shear_x * (height / 2) - right.trunc(), shear_y * (width / 2) - down.trunc()
    return [cos, shear_x - sin, c, shear_y + sin, cos, f]


def _enhance(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Extrapolate from black (brightness), gray (color), mean gray (contrast) or a blurred image (sharpness)."""
    names = [name for name in ("Brightness", "Color", "Contrast", "Sharpness") if _changes(name, levels)]
    amount = torch.stack([_only(name, operation, magnitude) for name in names]).sum(0)
    shades = gray(levels).floor()
    other = torch.where(operation == NUMBER["Color"], shades, 0)
    other = torch.where(operation == NUMBER["Contrast"], shades.mean((1, 2, 3), keepdim=True), other)
    if "Sharpness" in names:
        other = torch.where(operation == NUMBER["Sharpness"], _blurred(levels), other)
    return extrapolate(levels, other, amount, 255).floor()


def _changes(name: str, levels: Tensor) -> bool:
    """Whether the operation can change such images: gray ones have no color, tiny ones have no interior to sharpen."""
    return {"Color": levels.shape[1] == 3, "Sharpness": min(levels.shape[-2:]) > 2}.get(name, True)


def _blurred(levels: Tensor) -> Tensor:
    """Blur with torchvision's kernel: five times the pixel plus its eight neighbors, over 13. The border stays."""
    neighborhood = F.avg_pool2d(levels, 3, stride=1, divisor_override=1)
    inside = (neighborhood + 4 * levels[..., 1:-1, 1:-1]) / 13
    blurred = levels.clone()
    blurred[..., 1:-1, 1:-1] = inside.round()
    return blurred


def _look_up(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Apply the operations that map levels to levels, with a table (B, C, 256) per channel."""
    operation, magnitude = operation[:, :, 0], magnitude[:, :, 0]  # (B, 1, 1)
    indices = levels.long().flatten(2)  # (B, C, H * W)
    old = torch.arange(256, device=levels.device)
    bits = magnitude.long().clamp(0, 8)
    tables = {
        "Posterize": old & -(torch.ones_like(bits) << (8 - bits)),
        "Solarize": torch.where(old >= magnitude, 255 - old, old),
        "AutoContrast": _stretched(indices, old),
        "Equalize": _equalized(indices, old),
        "Invert": 255 - old,
    }
    new = old
    for name, table in tables.items():
        new = torch.where(operation == NUMBER[name], table, new)
    return new.to(levels.dtype).expand(*indices.shape[:2], 256).gather(2, indices).view_as(levels)


def _stretched(indices: Tensor, old: Tensor) -> Tensor:
    """Return the table that maps the darkest level of a channel to 0 and the brightest to 255."""
    low, high = (v.float() for v in indices.aminmax(dim=2, keepdim=True))
    stretched = ((old - low) * (255 / (high - low))).clamp(0, 255)
    return torch.where(high > low, stretched, old).long()


def _equalized(indices: Tensor, old: Tensor) -> Tensor:
    """Return the table that equalizes a channel's histogram."""
    ones = torch.ones((), dtype=torch.long, device=indices.device)
    count = torch.zeros(*indices.shape[:2], 256, dtype=torch.long, device=indices.device)
    count.scatter_add_(2, indices, ones.expand_as(indices))
    brightest = count.gather(2, indices.amax(dim=2, keepdim=True))
    step = (indices.shape[2] - brightest) // 255  # (B, C, 1)
    below = count.cumsum(2) - count
    equalized = ((below + step // 2) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, equalized, old)  # too few pixels: unchanged

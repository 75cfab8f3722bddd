"""AutoAugment's fifteen operations (Cubuk et al., 2019) on a batch, every example with its own operation and magnitude.

Images are levels: whole numbers 0 ... 255 as float32, and every operation returns such. What is not whole is rounded
down, as torchvision does with bytes. Nothing waits for the device: each operation is part of one of three steps, which
all examples take and which leave those alone whose operation is another.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.perturb.geometry import warp

OPERATIONS = (
    "Identity",
    # These may have either sign:
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    # These have none:
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}


def operate(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Apply to every image its operation.

    Args:
        levels: Whole numbers 0 ... 255 as floats, (B, C, H, W), C = 1 or 3.
        operation: Places in `OPERATIONS`, (B,).
        magnitude: In the operation's own unit, (B,): the slope of a shear; pixels right or down, whole ones; degrees
            counter-clockwise; how much more than 1 of brightness, color, contrast or sharpness; the bits that
            posterizing keeps; the level from which solarizing inverts. The others take none.

    Returns:
        Levels. Moved images are black where nothing came from, and take the nearest pixel.

    Example:
        >>> image = torch.tensor([[[[0.0, 100.0], [200.0, 255.0]]]])
        >>> operate(image, torch.tensor([NUMBER["Solarize"]]), torch.tensor([128.0]))
        tensor([[[[  0., 100.],
                  [ 55.,   0.]]]])
    """
    levels = warp(levels, inverse_map(operation, magnitude, *levels.shape[-2:]), mode="nearest")
    operation = operation.view(-1, 1, 1, 1)
    magnitude = magnitude.to(levels.dtype).view(-1, 1, 1, 1)
    levels = _enhance(levels, operation, magnitude)
    return _look_up(levels, operation, magnitude)


def gray(images: Tensor) -> Tensor:
    """Brightness as the eye weighs red, green and blue: (B, C, H, W) -> (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def leave(images: Tensor, other: Tensor, amount: Tensor, top: float) -> Tensor:
    """Go away from `other` by `amount` of the distance, towards it if negative; cut off at 0 and `top`.

    Written so that an amount of 0, and a pixel at which the two agree, change nothing even before rounding down.
    """
    return (images + amount * (images - other)).clamp(0, top)


def _of(name: str, operation: Tensor, magnitude: Tensor) -> Tensor:
    """The magnitude where this is the operation, else 0."""
    return torch.where(operation == NUMBER[name], magnitude, 0)


def inverse_map(operation: Tensor, magnitude: Tensor, height: int, width: int) -> list[Tensor]:
    """The map of `warp` that shears (about the corner), translates or rotates; others stay. Six tensors (B,)."""
    magnitude = magnitude.float()
    names = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    shear_x, shear_y, right, down, angle = (_of(name, operation, magnitude) for name in names)
    cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
    c, f = shear_x * (height / 2) - right.trunc(), shear_y * (width / 2) - down.trunc()
    return [cos, shear_x - sin, c, shear_y + sin, cos, f]


def _enhance(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Brightness, color, contrast, sharpness: away from black, from gray, from the mean gray, from a blurred image."""
    names = [name for name in ("Brightness", "Color", "Contrast", "Sharpness") if _changes(name, levels)]
    amount = torch.stack([_of(name, operation, magnitude) for name in names]).sum(0)
    shades = gray(levels).floor()
    other = torch.where(operation == NUMBER["Color"], shades, 0)
    other = torch.where(operation == NUMBER["Contrast"], shades.mean((1, 2, 3), keepdim=True), other)
    if "Sharpness" in names:
        other = torch.where(operation == NUMBER["Sharpness"], _blurred(levels), other)
    return leave(levels, other, amount, 255).floor()


def _changes(name: str, levels: Tensor) -> bool:
    """A gray image has no color, and one of two pixels no inside to sharpen."""
    return {"Color": levels.shape[1] == 3, "Sharpness": min(levels.shape[-2:]) > 2}.get(name, True)


def _blurred(levels: Tensor) -> Tensor:
    """A pixel five times and its eight neighbors, over 13; the border stays."""
    neighborhood = F.avg_pool2d(levels, 3, stride=1, divisor_override=1)
    inside = (neighborhood + 4 * levels[..., 1:-1, 1:-1]) / 13
    blurred = levels.clone()
    blurred[..., 1:-1, 1:-1] = inside.round()
    return blurred


def _look_up(levels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """The operations that are a table of levels for each channel: a new level for every old one, (B, C, 256)."""
    operation, magnitude = operation[:, :, 0], magnitude[:, :, 0]  # (B, 1, 1)
    places = levels.long().flatten(2)  # (B, C, H * W)
    old = torch.arange(256, device=levels.device)
    bits = magnitude.long().clamp(0, 8)
    tables = {
        "Posterize": old & -(torch.ones_like(bits) << (8 - bits)),
        "Solarize": torch.where(old >= magnitude, 255 - old, old),
        "AutoContrast": _stretched(places, old),
        "Equalize": _equalized(places, old),
        "Invert": 255 - old,
    }
    new = old
    for name, table in tables.items():
        new = torch.where(operation == NUMBER[name], table, new)
    return new.to(levels.dtype).expand(*places.shape[:2], 256).gather(2, places).view_as(levels)


def _stretched(places: Tensor, old: Tensor) -> Tensor:
    """The darkest level of a channel becomes 0 and the brightest 255."""
    low, high = (v.float() for v in places.aminmax(dim=2, keepdim=True))
    stretched = ((old - low) * (255 / (high - low))).clamp(0, 255)
    return torch.where(high > low, stretched, old).long()


def _equalized(places: Tensor, old: Tensor) -> Tensor:
    """About as many pixels of a channel at every level: the histogram's cumulative sum, in steps that end at 255."""
    ones = torch.ones((), dtype=torch.long, device=places.device)
    count = torch.zeros(*places.shape[:2], 256, dtype=torch.long, device=places.device)
    count.scatter_add_(2, places, ones.expand_as(places))
    brightest = count.gather(2, places.amax(dim=2, keepdim=True))
    step = (places.shape[2] - brightest) // 255  # (B, C, 1)
    below = count.cumsum(2) - count
    equalized = ((below + step // 2) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, equalized, old)  # too few pixels to tell steps apart: as it was

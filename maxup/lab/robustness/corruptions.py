"""Corruptions of images at five strengths: noise, blur, contrast, JPEG and occlusion.

The kinds follow CIFAR-10-C (Hendrycks and Dietterich, 2019, "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations"), which has no occlusion. The strengths are ours, so accuracies are not comparable with
published numbers of CIFAR-10-C.

A corruption takes pixels in [0, 1], (B, C, H, W), a level, and the index of each image in its data set, (B,). What is
random depends only on the index: not on the batch, the device or the level.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.rng import make_generator

TRUNCATE = 4.0  # the blur ends at this many sigmas
REFERENCE = 32  # height or width of the images of CIFAR-10, for the scale of the blur


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption."""

    apply: Callable[[Tensor, float, Tensor], Tensor]
    """`apply(x, level, indices)` returns the corrupted images."""
    levels: tuple[float, ...]
    """The five strengths, from weak to strong."""
    unit: str
    """What a level is."""


def noise(x: Tensor, std: float, indices: Tensor) -> Tensor:
    """Add Gaussian noise and clip to [0, 1]."""
    drawn = [torch.randn(x.shape[1:], generator=make_generator("corruption noise", i)) for i in indices.tolist()]
    return (x + std * torch.stack(drawn).to(x.device)).clamp(0, 1)


def blur(x: Tensor, sigma: float, indices: Tensor) -> Tensor:
    """Blur with a Gaussian. Pixels outside the image are those of its edge.

    Images whose shorter side is above 32 pixels are blurred with a sigma that grows in proportion.
    """
    sigma *= max(1.0, min(x.shape[-2:]) / REFERENCE)
    reach = int(TRUNCATE * sigma + 0.5)
    weights = [float(np.exp(-0.5 * (k / sigma) ** 2)) for k in range(-reach, reach + 1)]
    for dim in (-2, -1):
        padded = F.pad(x, (reach, reach, 0, 0) if dim == -1 else (0, 0, reach, reach), mode="replicate")
        parts = (w / sum(weights) * padded.narrow(dim, k, x.shape[dim]) for k, w in enumerate(weights))
        x = sum(parts, start=torch.zeros_like(x))
    return x.clamp(0, 1)


def contrast(x: Tensor, factor: float, indices: Tensor) -> Tensor:
    """Shrink the distance of every pixel from the mean of its channel by a factor."""
    mean = x.mean((2, 3), keepdim=True)
    return torch.lerp(mean, x, factor)


def jpeg(x: Tensor, quality: float, indices: Tensor) -> Tensor:
    """Compress and decompress with pillow, on the CPU. Without three channels, each channel is compressed alone."""
    data = (x * 255).round().to("cpu", torch.uint8)
    if x.shape[1] == 3:
        found = [_compress(image, int(quality)) for image in data.permute(0, 2, 3, 1).numpy()]
        out = torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)
    else:
        found = [_compress(channel, int(quality)) for channel in data.flatten(0, 1).numpy()]
        out = torch.from_numpy(np.stack(found)).view(x.shape)
    return out.to(x.device, x.dtype) / 255


def _compress(image: np.ndarray, quality: int) -> np.ndarray:
    """Return what is left of a gray or color image in bytes, (H, W) or (H, W, 3)."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def occlusion(x: Tensor, fraction: float, indices: Tensor) -> Tensor:
    """Cover a rectangle with gray, 0.5. `fraction` of the height and of the width is covered, at a random place."""
    drawn = [torch.rand(2, generator=make_generator("corruption occlusion", i)) for i in indices.tolist()]
    covered = torch.ones((), dtype=torch.bool, device=x.device)
    for side, dim, place in zip(x.shape[2:], (2, 3), torch.stack(drawn).unbind(1), strict=True):
        length = round(fraction * side)
        start = (place.double() * (side - length + 1)).long().to(x.device)[:, None]  # (B, 1)
        position = torch.arange(side, device=x.device)
        inside = (position >= start) & (position < start + length)  # (B, side)
        covered = covered & inside.view(-1, 1, *((side, 1) if dim == 2 else (1, side)))
    return x.masked_fill(covered, 0.5)


CORRUPTIONS = {
    "noise": Corruption(noise, (0.04, 0.08, 0.12, 0.16, 0.2), "standard deviation"),
    "blur": Corruption(blur, (0.4, 0.6, 0.8, 1.0, 1.5), "sigma in pixels"),
    "contrast": Corruption(contrast, (0.75, 0.5, 0.35, 0.25, 0.15), "factor"),
    "jpeg": Corruption(jpeg, (80, 60, 40, 25, 10), "quality"),
    "occlusion": Corruption(occlusion, (0.2, 0.3, 0.4, 0.5, 0.6), "fraction of the sides"),
}

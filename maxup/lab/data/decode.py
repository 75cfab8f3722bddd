"""One image file as bytes of a fixed size: a random part of it in training, its center in evaluation.

The crops are torchvision's `RandomResizedCrop` and `Resize` + `CenterCrop` on PIL images, without torchvision.
"""

import math
import os
import warnings
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor

Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # left, top, right, bottom
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no others: Pillow runs Ghostscript on PostScript
PIXELS = 89_478_485  # of one image at most: 256 MiB in RGB, above which Pillow warns
LONGEST = 8  # short sides of an image that are looked at in evaluation
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop: its part of the area, and width / height


def read_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """The whole picture in RGB: gray, palette, CMYK and 16-bit ones are converted, transparency is left out.

    A rotation noted in its EXIF data is not applied, as is usual with ImageNet. Raises what PIL raises on a file that
    is not an image of `FORMATS`, whatever its name is, or is damaged or cut short; a ValueError for an image of more
    than `PIXELS`, before it is decoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, say
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > PIXELS:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"{path} has {size} pixels, and at most {PIXELS:,} are decoded; make it smaller")
            if image.mode.startswith("I"):  # 16 bits a pixel, which PIL would clip at 255
                return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
            if image.mode == "P":  # whose transparent colors PIL knows in RGBA alone
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")


def random_box(width: int, height: int, generator: Generator) -> Box:
    """A random part of an image: 8 % to all of its area, 3/4 to 4/3 as wide as high, anywhere.

    Example:
        >>> left, top, right, bottom = random_box(500, 375, Generator().manual_seed(0))
        >>> 0 <= left < right <= 500 and 0 <= top < bottom <= 375
        True
    """
    low, high = torch.tensor(RATIO).log().tolist()
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(*SCALE, generator=generator).item()
        ratio = torch.empty(1).uniform_(low, high, generator=generator).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(height - h + 1, (1,), generator=generator))
            left = int(torch.randint(width - w + 1, (1,), generator=generator))
            return left, top, left + w, top + h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))  # an extreme shape: its center
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


def random_crop(image: Image.Image, size: int, generator: Generator, interpolation: Interpolation) -> Tensor:
    """A random part, resized to (3, size, size) bytes."""
    part = image.crop(random_box(*image.size, generator))
    return to_bytes(part.resize((size, size), FILTERS[interpolation]))


def center_crop(image: Image.Image, size: int, crop_fraction: float, interpolation: Interpolation) -> Tensor:
    """The center, (3, size, size) bytes, of the image resized so that its short side is size / crop_fraction.

    Example:
        >>> center_crop(Image.new("RGB", (500, 375)), 224, 0.875, "bilinear").shape
        torch.Size([3, 224, 224])
    """
    short = int(size / crop_fraction)
    width, height = image.size
    most = LONGEST * min(width, height)  # or a stripe of two pixels by thousands would fill the memory
    if max(width, height) > most:
        left, top = (max(side - most, 0) // 2 for side in (width, height))
        width, height = min(width, most), min(height, most)
        image = image.crop((left, top, left + width, top + height))
    wanted = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    image = image.resize(wanted, FILTERS[interpolation])
    left, top = (round((side - size) / 2) for side in wanted)
    return to_bytes(image.crop((left, top, left + size, top + size)))


def to_bytes(image: Image.Image) -> Tensor:
    """An RGB picture as (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)

"""Decode an image file to bytes of a fixed size: a random crop in training, the center crop in evaluation.

The crops equal torchvision's `RandomResizedCrop` and `Resize` + `CenterCrop` on PIL images, without torchvision.
"""

import math
import os
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Generator, Tensor

from maxup.errors import error_message

Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # left, top, right, bottom
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not PostScript: Pillow runs Ghostscript on it
PIXELS = 89_478_485  # limit per image: 256 MiB in RGB; Pillow warns above it
LONGEST = 8  # evaluation crops an image to at most this aspect ratio before it resizes it
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop: fraction of the area, and width / height


def read_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """Read an image in RGB. Grayscale, palette, CMYK and 16-bit images are converted, and transparency is dropped.

    Images are rotated as their EXIF orientation says. If simplejpeg is installed, it decodes usual JPEG files faster,
    to values that differ from PIL's by at most 1 of 255. PIL decodes all other files.

    Raises:
        OSError: The file is damaged, or not in one of `FORMATS`. PIL may raise other errors too.
        ValueError: The image has more than `PIXELS` pixels, or float pixels. It is not decoded.
    """
    if (image := _fast_jpeg(path)) is not None:
        return image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about unusual metadata
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > PIXELS:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"{path} has {size} pixels, but the limit is {PIXELS:,}; make it smaller")
            if image.mode == "F":
                raise ValueError(
                    f"{path} has float pixels, whose range is unknown; save it with integers of 8 or 16 bits"
                )
            image.load()
            with suppress(Exception):  # PIL raises many types of errors for damaged EXIF data
                ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)


def why_unreadable(path: str | os.PathLike[str]) -> str:
    """Return the path of an image that could not be read, and why."""
    try:
        read_rgb(path)
    except Exception as error:  # PIL raises many types of errors for damaged files
        why = error_message(error).replace(f" {os.fspath(path)!r}", "")  # PIL names it in some messages
        return why if why.startswith(os.fspath(path)) else f"{path}: {why}"
    return f"{path}, which can be read now"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB. Pixels of 16 bits are scaled to 8, and transparency is dropped."""
    if image.mode.startswith("I"):  # 16 bits per pixel; PIL would clip them at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "P":  # PIL converts transparent colors only to RGBA
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


@cache
def find_simplejpeg() -> Any:
    """Return the module, or None if it is not installed."""
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


def _fast_jpeg(path: str | os.PathLike[str]) -> Image.Image | None:
    """Decode a JPEG in YCbCr, as nearly all are. Returns None for PIL to decide: another format, or a damaged file."""
    if (simplejpeg := find_simplejpeg()) is None:
        return None
    with open(path, "rb") as file:
        data = file.read(3)
        if data != b"\xff\xd8\xff":
            return None
        data += file.read()
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        if colors != "YCbCr" or width * height > PIXELS or _is_rotated(data):
            return None
        return Image.fromarray(simplejpeg.decode_jpeg(data))
    except ValueError:  # also if the file is cut short
        return None


def _is_rotated(data: bytes) -> bool:
    """Whether a JPEG has an EXIF orientation other than 1, or may have another orientation, which PIL has to find."""
    start = data[: 2**16]
    if b"tiff:Orientation" in start:  # in XMP
        return True
    if (where := start.find(b"Exif\0\0")) < 0:
        return False
    exif = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exif.load(start[where:])
            return exif.get(ExifTags.Base.Orientation, 1) != 1
    except Exception:  # the EXIF data are damaged; PIL raises many types of errors
        return True


def random_box(width: int, height: int, generator: Generator) -> Box:
    """Draw a random box: 8 % to 100 % of the area, with an aspect ratio of 3/4 to 4/3."""
    low, high = torch.tensor(RATIO).log().tolist()
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(*SCALE, generator=generator).item()
        ratio = torch.empty(1).uniform_(low, high, generator=generator).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(height - h + 1, (1,), generator=generator))
            left = int(torch.randint(width - w + 1, (1,), generator=generator))
            return left, top, left + w, top + h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))  # no draw fits: take the center
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


def random_crop(image: Image.Image, size: int, generator: Generator, interpolation: Interpolation) -> Tensor:
    """Crop a random box and resize it to bytes (3, size, size)."""
    part = image.crop(random_box(*image.size, generator))
    return to_bytes(part.resize((size, size), FILTERS[interpolation]))


def center_crop(image: Image.Image, size: int, crop_fraction: float, interpolation: Interpolation) -> Tensor:
    """Resize the short side to size / crop_fraction, then crop the center: bytes (3, size, size)."""
    short = int(size / crop_fraction)
    width, height = image.size
    most = LONGEST * min(width, height)  # resizing a 2 x 60,000 image would exhaust memory
    if max(width, height) > most:
        left, top = (max(side - most, 0) // 2 for side in (width, height))
        width, height = min(width, most), min(height, most)
        image = image.crop((left, top, left + width, top + height))
    resized = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    image = image.resize(resized, FILTERS[interpolation])
    left, top = (round((side - size) / 2) for side in resized)
    return to_bytes(image.crop((left, top, left + size, top + size)))


def to_bytes(image: Image.Image) -> Tensor:
    """Return an RGB image as bytes (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)

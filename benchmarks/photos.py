"""Ten classes of ImageNet photos at 96 x 96 pixels, where a small network trains on a CPU with `fast=True`.

    maxup compare benchmarks/photos-cutmix.yaml --data_from benchmarks.photos:data --model_from benchmarks.photos:net \\
        --seeds 6 --m 4 --fast --images 500

MAXUP_PHOTOS is a folder with one folder per class, or with `train` and `val`, whose photos are put together.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from maxup.lab.models.resnet import resnet

SIDE = 96  # pixels; the smallest images that fast=True scores at half their size


@cache
def data() -> tuple[Tensor, list[str]]:
    """Return photos as bytes, (N, 3, 96, 96), and the folder name of each one as its class."""
    files = sorted(Path(os.environ["MAXUP_PHOTOS"]).rglob("*.JPEG"))
    return torch.stack([read(file) for file in files]), [file.parent.name for file in files]


def read(file: Path) -> Tensor:
    """Return the central square of a photo as bytes, (3, 96, 96)."""
    with Image.open(file) as image:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        pixels = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box, reducing_gap=3)
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()


def net(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build a ResNet-8 that starts as the ResNets for ImageNet do, at a quarter of the resolution."""
    stem = nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    return nn.Sequential(stem, resnet((16, *shape[1:]), num_classes, depth=8))

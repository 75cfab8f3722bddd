"""CIFAR-10 at 16 x 16 pixels, where a small network trains on a CPU until it stops improving.

    maxup compare benchmarks/cifar16-little_data.yaml --data_from benchmarks.cifar16:data --seeds 8

A pixel is the average of 2 x 2 pixels. CIFAR-10 must be where `maxup data` finds it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.lab.data import load_data


def data() -> tuple[tuple[Tensor, list[str]], tuple[Tensor, list[str]]]:
    """Return the training and the test set: images as bytes, (N, 3, 16, 16), and the name of each class."""
    train, test = ((halve(one.x), [one.classes[i] for i in one.y]) for one in load_data("cifar10"))
    return train, test


def halve(images: Tensor) -> Tensor:
    """Average 2 x 2 pixels of images that are stored as bytes, and round.

    Example:
        >>> halve(torch.tensor([[[[1, 2], [4, 6]]]], dtype=torch.uint8)).tolist()
        [[[[3]]]]
    """
    return F.avg_pool2d(images.float(), 2).round().to(torch.uint8)

"""CIFAR-10 at 16 x 16 pixels, where a small network trains on a CPU until it stops improving.

    maxup compare benchmarks/cifar16-little_data.yaml --data_from benchmarks.cifar16:data --seeds 8 \\
        --images 2000

A pixel is the average of 2 x 2 pixels. CIFAR-10 must be where `maxup data` finds it.
"""

import torch
from torch import Tensor

from maxup.lab.data import load_data
from maxup.objectives.fast_scoring import halve


def data() -> tuple[tuple[Tensor, list[str]], tuple[Tensor, list[str]]]:
    """Return the training and the test set: images as bytes, (N, 3, 16, 16), and the name of each class."""
    train, test = (
        (halve(one.x.float()).round().to(torch.uint8), [one.classes[i] for i in one.y]) for one in load_data("cifar10")
    )
    return train, test


def held_out() -> tuple[tuple[Tensor, list[str]], tuple[Tensor, list[str]]]:
    """Return 40,000 training images, and the other 10,000 as the test set, to choose settings on."""
    x, labels = data()[0]
    return (x[:40_000], labels[:40_000]), (x[40_000:], labels[40_000:])

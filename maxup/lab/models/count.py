"""Count the parameters of a network, and the multiply-adds per image."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.PReLU, nn.LeakyReLU, nn.ELU)
POOLS = (nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, including frozen ones."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_multiply_adds(model: nn.Module, shape: Sequence[int]) -> int:
    """Return the multiply-adds for one image, counted like ptflops, whose numbers the paper reports.

    A convolution or linear layer counts its products, plus one per output for a bias. BatchNorm counts two per element,
    an activation of the ReLU family one, and pooling one per input. Only torch layers count.

    Args:
        model: The network, on any device. On "meta" this takes no memory.
        shape: Shape of the image, (C, H, W).
    """
    total = 0

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        if isinstance(layer, _ConvNd | nn.Linear):
            total += output.numel() * (layer.weight[0].numel() + (layer.bias is not None))
        elif isinstance(layer, _BatchNorm):
            total += 2 * output.numel()
        elif isinstance(layer, ACTIVATIONS):
            total += output.numel()
        elif isinstance(layer, POOLS):
            total += inputs[0].numel()

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *shape, device=device))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return total


def format_count(number: int) -> str:
    """Format a large number with a unit.

    Example:
        >>> format_count(25557032), format_count(7849500136)
        ('25.56 M', '7.85 G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return str(number)

"""Optimizers, learning rate schedules, and averages of the weights."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from maxup.lab.recipes.schema import Optim


def create_optimizer(model: nn.Module, optim: Optim) -> Optimizer:
    """Build the recipe's optimizer for the parameters that require gradients."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    shared: dict[str, Any] = {"lr": optim.lr, "weight_decay": optim.weight_decay}
    if parameters[0].is_cuda:  # the rate as a tensor, which a CUDA graph reads at every step
        shared |= {"lr": torch.tensor(optim.lr, device=parameters[0].device), "fused": True}
    if optim.name == "adamw":
        return AdamW(parameters, capturable=parameters[0].is_cuda, **shared)
    return SGD(parameters, momentum=optim.momentum, nesterov=optim.nesterov, **shared)  # "asgd": the loop averages


def learning_rate(optim: Optim, done: float) -> float:
    """Return the learning rate after a fraction `done` of the run."""
    rate = optim.lr
    if optim.warmup and done < optim.warmup:
        rate *= done / optim.warmup
    if optim.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * done))
    elif optim.schedule == "steps":
        rate *= optim.gamma ** sum(done >= milestone - 1e-9 for milestone in optim.milestones)
    return rate


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups. A rate that is a tensor is filled in place, as a CUDA graph needs it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def average(ema: nn.Module, model: nn.Module, decay: float) -> None:
    """Update an average of the weights: ema = decay * ema + (1 - decay) * model. Buffers are copied.

    Example:
        >>> ema, model = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> _ = nn.init.zeros_(ema.weight), nn.init.ones_(model.weight)
        >>> average(ema, model, 0.75)
        >>> ema.weight.item()
        0.25
    """
    for averaged, weight in zip(ema.parameters(), model.parameters(), strict=True):
        averaged.lerp_(weight, 1 - decay)
    for copy, buffer in zip(ema.buffers(), model.buffers(), strict=True):
        copy.copy_(buffer)

"""Optimizers, learning rate schedules, and averages of the weights."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from maxup.lab.recipes.schema import Optim

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
LOOKAHEAD_DECAY = 0.95  # per update, at the end of the run


def create_optimizer(model: nn.Module, optim: Optim) -> Optimizer:
    """Build the recipe's optimizer for the parameters that require gradients."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if optim.bias_lr != 1:
        groups = _split_biases(model, parameters, optim)
    shared: dict[str, Any] = {"lr": optim.lr, "weight_decay": optim.weight_decay}
    if parameters[0].is_cuda:  # the rate as a tensor, which a CUDA graph reads at every step
        shared |= {"fused": True}
        for group in groups:
            group["lr"] = torch.tensor(optim.lr, device=parameters[0].device)
    if optim.name == "adamw":
        return AdamW(groups, capturable=parameters[0].is_cuda, **shared)
    return SGD(groups, momentum=optim.momentum, nesterov=optim.nesterov, **shared)  # "asgd": the loop averages


def _split_biases(model: nn.Module, parameters: list[nn.Parameter], optim: Optim) -> list[dict[str, Any]]:
    """Return two groups: the biases of normalization layers, which have another learning rate, and the others."""
    norms = {id(layer.bias) for layer in model.modules() if isinstance(layer, NORMS)}
    biases, others = ([p for p in parameters if (id(p) in norms) == inside] for inside in (True, False))
    if not biases:
        raise ValueError("optim.bias_lr is set, but the model has no normalization layer with a bias to train")
    scaled = {"lr_factor": optim.bias_lr, "weight_decay": optim.weight_decay / optim.bias_lr}  # the product stays
    return [{"params": others, "lr_factor": 1.0}, {"params": biases, **scaled}]


def learning_rate(optim: Optim, done: float) -> float:
    """Return the learning rate after a fraction `done` of the run."""
    rate = optim.lr
    if optim.warmup and done < optim.warmup:
        rate *= done / optim.warmup
    if optim.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * done))
    elif optim.schedule == "steps":
        rate *= optim.gamma ** sum(done >= milestone - 1e-9 for milestone in optim.milestones)
    elif optim.schedule == "triangle":
        if done < optim.peak:
            rate *= optim.start_factor + (1 - optim.start_factor) * done / optim.peak
        elif done > optim.peak:
            rate *= 1 - (1 - optim.end_factor) * (done - optim.peak) / (1 - optim.peak)
    return rate


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups. A rate that is a tensor is filled in place, as a CUDA graph needs it."""
    for group in optimizer.param_groups:
        scaled = rate * group.get("lr_factor", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


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


@torch.no_grad()
def lookahead(slow: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the slow weights toward the model, slow = decay * slow + (1 - decay) * model, and the model to them.

    BatchNorm statistics move likewise. (Zhang, Lucas, Hinton and Ba, 2019, with a decay that changes.)

    Example:
        >>> slow, model = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> _ = nn.init.zeros_(slow.weight), nn.init.ones_(model.weight)
        >>> lookahead(slow, model, 0.75)
        >>> slow.weight.item(), model.weight.item()
        (0.25, 0.25)
    """
    average, current = ([v for v in one.state_dict().values() if v.is_floating_point()] for one in (slow, model))
    torch._foreach_lerp_(average, current, 1 - decay)
    torch._foreach_copy_(current, average)


def lookahead_decay(interval: int, done: float) -> float:
    """Return how much of the slow weights stays, after a fraction `done` of the run. At the start, nothing does."""
    return float(LOOKAHEAD_DECAY**interval * done**3)

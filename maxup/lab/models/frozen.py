"""Freeze BatchNorm, and make frozen copies of models."""

import copy
from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Frozen(nn.Module):
    """A layer that stays in evaluation mode when the model switches to training mode."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


@cache
def _frozen(kind: Any) -> Any:
    return type(f"Frozen{kind.__name__}", (_Frozen, kind), {})


def freeze_norm(model: nn.Module) -> nn.Module:
    """Freeze every BatchNorm layer of a model, in place. It uses its running statistics, and its weights are fixed.

    Copies are then scored exactly as the update sees them, for every value of `norm`.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        raise ValueError("model.freeze_norm is set, but the model has no BatchNorm layer; remove the setting")
    for layer in layers:
        kind: Any = type(layer)
        layer.__class__ = _frozen(kind)
        layer.eval().requires_grad_(False)
    return model


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy without gradients, for an average of the weights."""
    copied = copy.deepcopy(model).requires_grad_(False)
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN needs contiguous weights; a copy does not have them
    return copied

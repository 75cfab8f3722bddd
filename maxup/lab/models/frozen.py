"""Freeze BatchNorm or layers by name, and make frozen copies of models."""

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from maxup.errors import unknown_name
from maxup.lab.models.normalize import Normalized


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
        _freeze(layer)
    return model


def freeze_layers(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """Freeze layers of a model by name, in place, with all that is inside them.

    Their weights are fixed, and their BatchNorm layers use the running statistics.

    Args:
        model: The model. For a `Normalized` one, names are those of the model inside it.
        names: Names of layers, as in `named_modules()`, such as "blocks.0".

    Example:
        >>> model = freeze_layers(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0"])
        >>> [name for name, weight in model.named_parameters() if weight.requires_grad]
        ['1.weight', '1.bias']
    """
    network = model.model if isinstance(model, Normalized) else model
    layers = {name: layer for name, layer in network.named_modules() if name and any(True for _ in layer.parameters())}
    for name in names:
        if name not in layers:
            raise ValueError(f"model.freeze: {unknown_name(name, layers, 'layer')}")
        layers[name].requires_grad_(False)
        for layer in layers[name].modules():
            if isinstance(layer, _BatchNorm):
                _freeze(layer)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError("model.freeze leaves no weight to train; remove a layer from it, such as the last one")
    return model


def _freeze(layer: nn.Module) -> None:
    kind: Any = type(layer)
    layer.__class__ = kind if issubclass(kind, _Frozen) else _frozen(kind)
    layer.eval().requires_grad_(False)


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy without gradients, for an average of the weights."""
    copied = copy.deepcopy(model).requires_grad_(False)
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN needs contiguous weights; a copy does not have them
    return copied

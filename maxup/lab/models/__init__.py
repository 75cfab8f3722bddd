"""Models by name: `create_model`, `list_models`."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from maxup.lab.models.count import count_parameters, format_count
from maxup.lab.models.external import create_external, is_external, list_external
from maxup.lab.registry import MODELS, build

MAX_PARAMETERS = 10**9  # 4 GB of weights


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match a pattern, such as "resnet*", or "timm/resnet*" for the models of timm."""
    if is_external(pattern):
        return list_external(pattern)
    return sorted(name for name in MODELS if fnmatch(name, pattern))


def create_model(
    name: str, *, shape: Sequence[int], num_classes: int, pretrained: bool = False, **args: Any
) -> nn.Module:
    """Build a model for image classification.

    Args:
        name: One of `list_models()`, or the name of a timm/... or pytorchcv/... model.
        shape: Shape of an image, (C, H, W).
        num_classes: Number of classes.
        pretrained: Start from published weights. Only timm and pytorchcv models have them.
        args: Arguments of the model.
    """
    if is_external(name):
        return create_external(name, shape=shape, num_classes=num_classes, pretrained=pretrained, **args)
    if pretrained:
        raise ValueError(f"{name} has no published weights; set model.pretrained to false, or use model.weights")
    return build_registered(MODELS, "model", name, shape=shape, num_classes=num_classes, **args)


def build_registered(registry: Mapping[str, str], kind: str, name: str, /, **arguments: Any) -> Any:
    """Build a registered network. A network that is too large is rejected before it takes memory.

    Its parameters are counted on the meta device.

    Example:
        >>> build_registered(MODELS, "model", "conv", shape=(3, 32, 32), num_classes=10, width=10_000)
        Traceback (most recent call last):
        ValueError: model 'conv' would have 9.00 G parameters, more than 1.00 G; use smaller model.args
    """
    with torch.device("meta"):
        size = count_parameters(build(registry, kind, name, **arguments))
    if size > MAX_PARAMETERS:
        limit = format_count(MAX_PARAMETERS)
        raise ValueError(
            f"{kind} {name!r} would have {format_count(size)} parameters, more than {limit}; use smaller model.args"
        )
    return build(registry, kind, name, **arguments)

"""Networks by name: `create_model`, `list_models`."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from maxup.lab.models.count import count_parameters, in_short
from maxup.lab.models.external import create_external, is_external, list_external
from maxup.lab.registry import MODELS, build

MOST_PARAMETERS = 10**9  # 4 GB of weights


def list_models(pattern: str = "*") -> list[str]:
    """The names of the models, those that match a pattern such as "resnet*"; "timm/resnet*" asks timm.

    Example:
        >>> "mlp" in list_models()
        True
    """
    if is_external(pattern):
        return list_external(pattern)
    return sorted(name for name in MODELS if fnmatch(name, pattern))


def create_model(
    name: str, *, shape: Sequence[int], num_classes: int, pretrained: bool = False, **args: Any
) -> nn.Module:
    """Build a model for images of a shape (C, H, W) and a number of classes.

    Args:
        name: One of `list_models()`, or timm/... or pytorchcv/... for theirs.
        shape: Of an image.
        num_classes: How many.
        pretrained: Begin with published weights, which networks of timm and pytorchcv have.
        args: The model's own.

    Example:
        >>> create_model("mlp", shape=(1, 8, 8), num_classes=10, hidden=[32])[-1].out_features
        10
    """
    if is_external(name):
        return create_external(name, shape=shape, num_classes=num_classes, pretrained=pretrained, **args)
    if pretrained:
        raise ValueError(f"there are no published weights of {name}; set model.pretrained false, or use model.weights")
    return build_network(MODELS, "model", name, shape=shape, num_classes=num_classes, **args)


def build_network(registry: Mapping[str, str], what: str, name: str, /, **arguments: Any) -> Any:
    """Build a network of a registry, after counting its parameters on the meta device, which needs no memory.

    Example:
        >>> build_network(MODELS, "model", "conv", shape=(3, 32, 32), num_classes=10, width=10_000)
        Traceback (most recent call last):
        ValueError: model 'conv' would have 9.00 G parameters, more than 1.00 G; choose smaller model.args
    """
    with torch.device("meta"):
        size = count_parameters(build(registry, what, name, **arguments))
    if size > MOST_PARAMETERS:
        limit = in_short(MOST_PARAMETERS)
        raise ValueError(
            f"{what} {name!r} would have {in_short(size)} parameters, more than {limit}; choose smaller model.args"
        )
    return build(registry, what, name, **arguments)

"""Networks by name: `create_model`, `list_models`."""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from torch import nn

from maxup.registry import MODELS, build


def list_models(pattern: str = "*") -> list[str]:
    """The names of the models, those that match a pattern such as "resnet*".

    Example:
        >>> "mlp" in list_models()
        True
    """
    return sorted(name for name in MODELS if fnmatch(name, pattern))


def create_model(name: str, *, shape: Sequence[int], classes: int, **args: Any) -> nn.Module:
    """Build a model for images of a shape (C, H, W) and a number of classes.

    Example:
        >>> create_model("mlp", shape=(1, 8, 8), classes=10, hidden=[32])[-1].out_features
        10
    """
    return build(MODELS, "model", name, shape=shape, classes=classes, **args)

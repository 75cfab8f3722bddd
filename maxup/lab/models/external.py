"""Networks of timm and pytorchcv by name: timm/resnet50, pytorchcv/proxylessnas_cpu. They need the imagenet extra.

A name and its arguments may come from a stranger's recipe: only networks that these packages list are built, and only
with arguments that change the network, so that nothing is read or downloaded but the published weights, on demand.
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import import_module
from typing import Any

import torch
from torch import nn

from maxup.errors import ModelError, error_message, format_error, unknown_name
from maxup.lab.limits import check_model_args
from maxup.lab.models.weights import load_weights

FAMILIES = ("timm", "pytorchcv")
ARGUMENTS: dict[str, list[str]] = {"timm": ["drop_rate", "drop_path_rate", "drop_block_rate"], "pytorchcv": []}
PAPER = {  # the paper's networks, and the height and width of the images it gives them
    "timm/resnet50": 224,
    "timm/resnet101": 224,
    "pytorchcv/proxylessnas_cpu": 224,
    "pytorchcv/proxylessnas_gpu": 224,
    "pytorchcv/proxylessnas_mobile14": 224,
    "timm/tf_efficientnet_b7": 600,
    "timm/tf_efficientnet_b8": 845,
}
_kept: list[torch.library.Library] = []  # definitions of operators live as long as these objects


def is_external(name: str) -> bool:
    """Whether a name, or a pattern, is one of timm or pytorchcv.

    Example:
        >>> is_external("timm/resnet50"), is_external("resnet110")
        (True, False)
    """
    return name.partition("/")[0] in FAMILIES and "/" in name


def create_external(
    name: str, *, shape: Sequence[int], num_classes: int, pretrained: bool = False, **args: Any
) -> nn.Module:
    """Build a network of timm or pytorchcv; with `pretrained` its published weights are downloaded, once.

    Pretrained for other classes than asked for, the last layer is a new one.
    """
    family, _, short = name.partition("/")
    for argument in args:
        if argument not in ARGUMENTS[family]:
            known = f"; it takes {', '.join(ARGUMENTS[family])}" if ARGUMENTS[family] else ""
            raise ModelError(f"{name} takes no argument {argument!r} from a recipe{known}")
    check_model_args(**{key: value for key, value in args.items() if value is not None})
    names = _names(family)
    if short.partition(".")[0] not in names:
        raise ModelError(unknown_name(name, [f"{family}/{n}" for n in names], "model") if names else f"no {name}")
    make = {"timm": _timm, "pytorchcv": _pytorchcv}[family]
    try:
        return make(short, shape[0], num_classes, pretrained, args)
    except Exception as error:  # of many kinds, by what a network lacks or a download meets
        if pretrained:
            raise ModelError(
                f"{name} with its published weights cannot be had ({format_error(error)}); connect, or name "
                "a file with model.weights, or train from scratch with model.pretrained false"
            ) from error
        raise ModelError(
            f"{name} cannot be built with {args} for {shape[0]} channels: {error_message(error)}"
        ) from error


def list_external(pattern: str) -> list[str]:
    """The names of a family that match a pattern, such as "timm/resnet*"."""
    family = pattern.partition("/")[0]
    return sorted(found for found in (f"{family}/{name}" for name in _names(family)) if fnmatch(found, pattern))


def import_torchvision() -> Any:
    """torchvision, also where its wheel, built for CUDA, lacks its operators beside a torch for the CPU alone.

    There the import ends with "operator torchvision::nms does not exist", and takes timm and others down with it. The
    operators are then declared, not defined: what is wanted of torchvision here calls none of them.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "nms" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _kept.append(library)
    return import_module("torchvision")


def _import(module: str) -> Any:
    try:
        import_torchvision()
        return import_module(module)
    except ImportError as error:
        raise ModelError(
            f"{module.partition('.')[0]} networks need the imagenet extra: in the clone, pip install -c "
            f"constraints.txt '.[imagenet]' ({error})"
        ) from error


def _names(family: str) -> list[str]:
    if family == "timm":
        return list(_import("timm").list_models())
    return list(_import("pytorchcv.model_provider")._models)


def _timm(name: str, channels: int, num_classes: int, pretrained: bool, args: dict[str, Any]) -> nn.Module:
    model: nn.Module = _import("timm").create_model(
        name, pretrained=pretrained, in_chans=channels, num_classes=num_classes, **args
    )
    return model


def _pytorchcv(name: str, channels: int, num_classes: int, pretrained: bool, args: dict[str, Any]) -> nn.Module:
    make = _import("pytorchcv.model_provider").get_model
    model: nn.Module = make(name, in_channels=channels, num_classes=num_classes)
    if pretrained:  # by our reader: theirs would run code that a file holds
        store = _import("pytorchcv.models.common.model_store")
        load_weights(model, store.get_model_file(name), new_head=True)
    return model

"""Models of timm and pytorchcv by name: timm/resnet50, pytorchcv/proxylessnas_cpu. They need the imagenet extra.

Names and arguments may come from an untrusted recipe. So only models that these packages list are built, and only with
arguments that change the architecture. Nothing is read or downloaded except published weights, if they are asked for.
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import import_module
from typing import Annotated, Any

from torch import nn

from maxup.errors import ModelError, error_message, format_error, unknown_name
from maxup.integrations.torchvision import import_torchvision
from maxup.lab.limits import DROP, check_range
from maxup.lab.models.weights import load_weights

FAMILIES = ("timm", "pytorchcv")
ARGUMENTS: dict[str, list[str]] = {"timm": ["drop_rate", "drop_path_rate", "drop_block_rate"], "pytorchcv": []}
PAPER = {  # the paper's networks and their image size
    "timm/resnet50": 224,
    "timm/resnet101": 224,
    "pytorchcv/proxylessnas_cpu": 224,
    "pytorchcv/proxylessnas_gpu": 224,
    "pytorchcv/proxylessnas_mobile14": 224,
    "timm/tf_efficientnet_b7": 600,
    "timm/tf_efficientnet_b8": 845,
}


def is_external(name: str) -> bool:
    """Whether a name or pattern is of timm or pytorchcv.

    Example:
        >>> is_external("timm/resnet50"), is_external("resnet110")
        (True, False)
    """
    return name.partition("/")[0] in FAMILIES and "/" in name


def create_external(
    name: str, *, shape: Sequence[int], num_classes: int, pretrained: bool = False, **args: Any
) -> nn.Module:
    """Build a model of timm or pytorchcv. With `pretrained`, its published weights are downloaded once.

    If the weights have another number of classes, the last layer is new.
    """
    family, _, short = name.partition("/")
    for argument, value in args.items():
        if argument not in ARGUMENTS[family]:
            known = f"; it takes {', '.join(ARGUMENTS[family])}" if ARGUMENTS[family] else ""
            raise ModelError(f"{name} does not take the argument {argument!r} in a recipe{known}")
        check_range(argument, value, Annotated[float, DROP])
    names = _names(family)
    if short.partition(".")[0] not in names:
        raise ModelError(unknown_name(name, [f"{family}/{n}" for n in names], "model") if names else f"no {name}")
    make = {"timm": _timm, "pytorchcv": _pytorchcv}[family]
    try:
        return make(short, shape[0], num_classes, pretrained, args)
    except Exception as error:  # networks and downloads can raise anything
        if pretrained:
            raise ModelError(
                f"cannot load the published weights of {name} ({format_error(error)}); check the connection, set "
                "model.weights to a file, or set model.pretrained to false to train from scratch"
            ) from error
        raise ModelError(
            f"{name} cannot be built with {args} for {shape[0]} channels: {error_message(error)}"
        ) from error


def list_external(pattern: str) -> list[str]:
    """Return the names that match a pattern, such as "timm/resnet*"."""
    family = pattern.partition("/")[0]
    return sorted(name for name in (f"{family}/{short}" for short in _names(family)) if fnmatch(name, pattern))


def _import(module: str) -> Any:
    try:
        import_torchvision()
        return import_module(module)
    except ImportError as error:
        family = module.partition(".")[0]
        extra = "timm" if family == "timm" else "imagenet"
        raise ModelError(
            f"{family} networks need the {extra} extra: in the clone, pip install -c constraints.txt '.[{extra}]' "
            f"({error})"
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
    if pretrained:  # read by load_weights, because the loader of pytorchcv would run code in the file
        store = _import("pytorchcv.models.common.model_store")
        load_weights(model, store.get_model_file(name), new_head=True)
    return model

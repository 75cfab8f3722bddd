"""Build the network of a recipe, or the user's, and check that it fits the data."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import RecipeError, UserCodeError, a_type, format_error
from maxup.isolation import preserve_state
from maxup.lab.models import create_model
from maxup.lab.models.external import is_external
from maxup.lab.models.frozen import freeze_layers, freeze_norm
from maxup.lab.models.normalize import Normalized
from maxup.lab.models.weights import load_weights
from maxup.lab.recipes.schema import Recipe

SAMPLE = 1000  # images for `init_from_images`


def build_network(
    recipe: Recipe,
    images: Any,
    device: torch.device,
    model_from: Callable[..., nn.Module] | None = None,
    *,
    largest_token: int = 0,
) -> nn.Module:
    """Build the network of a recipe on a device.

    If the network has a method `init_from_images(images)`, it is called with up to 1,000 normalized training images,
    (N, C, H, W). A checkpoint, or the weights in `model.weights`, replace what it sets.

    Args:
        recipe: The recipe.
        images: The training images. They determine the shape, the number of classes and the normalization.
        device: Device of the network.
        model_from: Builds the network instead of the recipe's: (shape, num_classes, **model.args).
        largest_token: The largest token id of all data, which the network must take.
    """
    settings, num_classes = recipe.model, len(images.classes)
    if model_from is not None and settings.pretrained:
        raise RecipeError("model.pretrained is for networks by name; with --model_from use model.weights, or neither")
    reserved = {"shape", "num_classes"} if model_from else {"shape", "num_classes", "name", "pretrained"}
    if misplaced := sorted(reserved & set(settings.args)):
        raise RecipeError(
            f"model.args must not have {misplaced[0]!r}: name and pretrained are settings of model, and shape and "
            "num_classes come from the data"
        )
    if settings.new_head and settings.weights is None:
        raise RecipeError("model.new_head has no effect without model.weights; remove it")
    is_tokens = images.dtype == torch.int64
    if is_tokens and model_from is None:
        raise RecipeError(
            f"your data are token ids, but {settings.name} takes images or rows of numbers; return floats for rows of "
            "numbers, or give a network that starts with an embedding with --model_from"
        )
    if model_from is not None:
        check_signature(model_from, settings.args)
    create = model_from or partial(create_model, settings.name, pretrained=settings.pretrained)
    model = check_module(create(shape=images.shape, num_classes=num_classes, **settings.args))
    if callable(init := getattr(model, "init_from_images", None)):
        init(_sample(images))
    model = Normalized(model, images.mean, images.std) if settings.normalize else model
    if settings.weights is not None:
        load_weights(model, settings.weights, new_head=settings.new_head)
    if settings.freeze_norm:
        freeze_norm(model)
    if settings.freeze:
        freeze_layers(model, settings.freeze)
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
    who = "model_from: your network" if model_from else settings.name if is_external(settings.name) else None
    if who is not None:
        side = getattr(images, "test_size", None)  # image folders can be evaluated at another size
        for shape in [images.shape, *([(3, side, side)] if side else [])]:
            x = torch.zeros(2, *shape, device=device)
            x = torch.full_like(x, largest_token, dtype=torch.int64) if is_tokens else x
            _check_output(who, model, x, num_classes)
    return model


def _sample(images: Any) -> Tensor:
    """Return some training images, evenly spread and normalized: (N, C, H, W)."""
    rows = torch.arange(0, len(images), max(1, len(images) // SAMPLE))[:SAMPLE]
    loader = images.subset(rows).loader(100, training=False, seed=0, device="cpu")
    return torch.cat([images.normalize(x) for _, x, _ in loader])


def check_signature(model_from: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raise a UserCodeError if a function does not take shape, num_classes and model.args by name."""
    if isinstance(inspect.unwrap(model_from), nn.Module):
        raise UserCodeError("model_from is a network; name a function (shape, num_classes) that returns it")
    try:
        signature = inspect.signature(model_from)
    except (TypeError, ValueError):  # some functions in C have none
        return
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return
    named = [name for name, kind in kinds.items() if kind.name in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")]
    takes = f"model_from: your function takes ({', '.join(kinds)})"
    if not {"shape", "num_classes"} <= set(named):
        raise UserCodeError(f"{takes}, but it must take the arguments shape and num_classes; add them")
    if unknown := [name for name in args if name not in named]:
        raise UserCodeError(
            f"{takes}, but the recipe also has {', '.join(unknown)} in model.args; set --model.args '{{}}', or add "
            "arguments of these names"
        )


def check_module(model: Any) -> nn.Module:
    """Return what `model_from` returned, if it is a network."""
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"model_from returned {a_type(model)}; it must return a torch.nn.Module")
    return model


def _check_output(who: str, model: nn.Module, x: Tensor, num_classes: int) -> None:
    """Call a network that is not ours once, without side effects. Raise a RecipeError if it does not fit the data."""
    kind = "images" if x.ndim == 4 else "inputs" if x.is_floating_point() else f"token ids up to {int(x.max())}"
    subject = f"{who}, for {kind} of shape {tuple(x.shape)},"
    try:
        with preserve_state(model, (x, None)), torch.no_grad():
            output = model(x)
    except Exception as error:  # of any type: it is not our code
        raise RecipeError(f"{subject} raised {format_error(error)}") from error
    if not isinstance(output, Tensor):
        raise RecipeError(f"{subject} returned {a_type(output)}; return logits of shape (2, {num_classes})")
    if output.shape != (2, num_classes):
        raise RecipeError(f"{subject} returned shape {tuple(output.shape)}; return logits of shape (2, {num_classes})")

"""Checks of arguments, models and batches. Each error says what came, what was expected and what to do."""

import math
import sys
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import Batch, batch_size, leaves
from maxup.errors import MaxUpWarning, a_type, error_message, format_value
from maxup.losses import IGNORE_INDEX

LARGEST = 3.4e38  # about the largest float32
MANY = 10**6
ABOVE_0 = math.ulp(0.0)
BELOW_1 = math.nextafter(1.0, 0.0)


def check_model(model: Any) -> None:
    """Raise unless the model is an `nn.Module`: scoring can preserve the state of modules only."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model is {a_type(model)}, not an nn.Module, so scoring cannot preserve its state; pass the "
            "module itself (or an nn.ModuleList of several) and pass forward= to define how to call it"
        )


def check_batch(batch: Batch) -> None:
    """Raise unless all tensors of x and y hold the same number of examples, at least one."""
    x, y = batch
    if not leaves((x, None)):
        raise TypeError(
            f"x is {a_type(x)} without tensors; pass a tensor (torch.as_tensor(x)), or a tuple or dict of tensors"
        )
    if is_list_of_dicts(y, batch_size((x, None))) or (isinstance(x, list | tuple) and is_list_of_dicts(y, len(x))):
        raise TypeError(
            f"y is {a_type(y)} of {len(y)} dicts, one per example; pass one dict of tensors with the batch "
            "dimension first, padded to the same size, such as boxes (B, N, 4)"
        )
    sizes = [len(leaf) for leaf in leaves(batch)]
    if len(set(sizes)) > 1:
        hint = "; if x is a list of images, use torch.stack(x)" if isinstance(x, list) else ""
        raise ValueError(
            f"x holds {batch_size((x, None))} examples, but another tensor of x or y holds "
            f"{next(s for s in sizes if s != sizes[0])}; all tensors must have the same first dimension, the batch "
            f"size{hint}"
        )
    if sizes[0] == 0:
        raise ValueError("the batch is empty; pass at least one example")


def is_list_of_dicts(y: Any, examples: int) -> bool:
    """Whether the targets are a list of dicts, one per example, as for torchvision's detection models."""
    return isinstance(y, list | tuple) and len(y) == examples and all(isinstance(target, Mapping) for target in y)


def can_read_without_sync(device: torch.device) -> bool:
    """Whether reading values on this device needs no synchronization."""
    return device.type == "cpu"


def check_values(x: Any) -> None:
    """Raise if x holds NaN. This reads values, which synchronizes a GPU."""
    for leaf in leaves((x, None)):
        # The sum is cheap and NaN if any value is. Look at every value only then, because inf - inf is NaN too.
        if leaf.is_floating_point() and bool(leaf.sum().isnan()) and bool(leaf.isnan().any()):
            raise ValueError(f"x holds NaN in a tensor of shape {tuple(leaf.shape)}; clean the data first")


def check_copy(copy: Batch, size: int) -> None:
    """Raise unless a perturbed copy is a pair (x, y) of `size` examples."""
    if not isinstance(copy, tuple) or len(copy) != 2:
        raise TypeError(f"the perturbation's apply returned {a_type(copy)}; it must return the pair (x, y)")
    for leaf in leaves(copy):
        if len(leaf) != size:
            raise ValueError(f"the perturbation turned {size} examples into {len(leaf)}; it must keep the batch size")


def check_gradient(batch: Batch, copy: Batch, perturbation: Any) -> None:
    """Raise if x needs a gradient and its copy has none, so that what computed x would not be trained."""
    needed, kept = (any(leaf.requires_grad for leaf in leaves((one[0], None))) for one in (batch, copy))
    if needed and not kept:
        raise ValueError(
            f"x requires a gradient, but the copies of {type(perturbation).__name__} have none, so the network that "
            "computed x would not be trained; pass x.detach() if that is intended, or use another perturbation"
        )


def check_classification(output: Any, target: Any, read_values: bool) -> None:
    """Raise unless the default loss accepts these: logits (B, C, ...), class ids (B, ...) or probabilities (B, C, ...).

    Args:
        output: What the model returned.
        target: The targets.
        read_values: Whether to check the values of the targets too, which synchronizes a GPU.
    """
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model returned {a_type(output)}, but the default loss expects logits (B, C); "
            "pass forward= to return the logits, or pass a loss_fn="
        )
    if not isinstance(target, Tensor):
        raise TypeError(
            f"y is {a_type(target)}, but the default loss expects a tensor; use torch.as_tensor(y), or pass a loss_fn="
        )
    if target.ndim == 0 or output.ndim < 2 or len(output) != len(target) or output.shape[1] < 2:
        raise ValueError(
            f"the model returned shape {tuple(output.shape)} for targets of shape {tuple(target.shape)}, "
            "but the default loss expects (B, C) with at least 2 classes; pass your loss as loss_fn="
        )
    ids = output.shape[:1] + output.shape[2:]  # (B, ...)
    if target.is_floating_point():
        if target.shape == ids:
            raise ValueError(
                f"y is {target.dtype} of shape {tuple(target.shape)}, but class ids must be integers; "
                "use y.long(), or pass your loss as loss_fn= if y does not hold classes"
            )
        if target.shape != output.shape:
            raise ValueError(
                f"targets of shape {tuple(target.shape)} are not probabilities for outputs {tuple(output.shape)}; "
                "pass your loss as loss_fn="
            )
        if read_values and not are_probabilities(target):
            raise ValueError(
                "floating-point targets must be probabilities that sum to 1 over the classes, because the default loss "
                "is the cross-entropy; pass your loss as loss_fn="
            )
    elif target.shape != ids:
        do = f"pass class ids {tuple(ids)}, probabilities {tuple(output.shape)} as floats, or a loss_fn="
        if output.ndim == 3 and target.shape == output.shape[:2]:
            do = "pass loss_fn=maxup.token_cross_entropy, or maxup.next_token_cross_entropy for a causal language model"
        elif target.shape == output.shape:
            raise ValueError(
                f"y is {target.dtype} of shape {tuple(target.shape)}, as the output; use y.float() for probabilities, "
                f"or pass class ids {tuple(ids)}"
            )
        raise ValueError(
            f"targets have shape {tuple(target.shape)}, but the model returned shape {tuple(output.shape)}, and the "
            f"default loss expects the classes in the second dimension; {do}"
        )
    elif read_values:
        _check_class_ids(target[target.long() != IGNORE_INDEX], output.shape[1])


def check_tokens(output: Any, target: Any, read_values: bool) -> None:
    """Raise unless the token losses accept these: logits (B, T, V) and token ids (B, T)."""
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (output, target)]
    if not isinstance(output, Tensor) or output.ndim != 3 or shapes[1] != shapes[0][:2]:
        raise ValueError(
            f"the model returned {shapes[0]} for targets {shapes[1]}, but this loss expects logits (B, T, V) and token "
            "ids (B, T); pass forward= to return the logits, as in forward=lambda model, x: model(**x).logits"
        )
    check_classification(output.transpose(1, 2), target, read_values)


def _check_class_ids(ids: Tensor, num_classes: int) -> None:
    """Raise unless all ids are in 0 ... num_classes - 1."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_classes:
        raise ValueError(
            f"labels range from {int(ids.min())} to {int(ids.max())}, but the model has {num_classes} outputs, 0 to "
            f"{num_classes - 1}; fix the labels or the model's last layer, and use {IGNORE_INDEX} for labels to ignore"
        )


def explain_call(x: Any, error: Exception) -> str | None:
    """Return what to do when model(x) failed on a dict, a tuple or uint8 images; None for other inputs."""
    if isinstance(x, Mapping) and isinstance(error, TypeError | AttributeError | ValueError | LookupError):
        message = error_message(error)
        reason = "" if "dict" in message else f" ({message})"  # torch's message about a dict is long
        return (
            f"x is a dict with the keys {list(x)}, and model(x) failed{reason}; pass forward= to call the model, as in "
            "forward=lambda model, x: model(**x).logits"
        )
    if isinstance(x, list | tuple) and isinstance(error, TypeError | AttributeError | ValueError):
        return (
            f"x is {a_type(x)} of {len(x)}, and model(x) failed; pass forward= to call the model, as in "
            "forward=lambda model, x: model(*x)"
        )
    images = [leaf for leaf in leaves((x, None)) if leaf.dtype == torch.uint8 and leaf.ndim > 2]
    if images and isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        return (
            f"x holds torch.uint8 images of shape {tuple(images[0].shape)}, and the model failed on them "
            f"({error_message(error)}); convert them first, as in x.float() / 255"
        )
    return None


def warn(message: str) -> None:
    """Issue a `MaxUpWarning` that points at the line that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("maxup", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, MaxUpWarning, stacklevel=level)


def check_losses(losses: Any, size: int) -> None:
    """Raise unless there is one loss per example: (size,)."""
    if not isinstance(losses, Tensor) or losses.shape != (size,):
        what = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else a_type(losses)
        if what == f"shape {(size, size)}" and size > 1:
            raise ValueError(
                f"the loss returned {what} for {size} examples, so output and target were broadcast; give them the "
                "same shape, as in output.squeeze(1)"
            )
        raise ValueError(
            f"the loss returned {what} for {size} examples; it must return one loss per example, shape ({size},): "
            "use reduction='none', and average further dimensions as in losses.flatten(1).mean(1)"
        )


def is_int(value: Any, low: int) -> bool:
    """Whether a value is a Python int, not a bool, and at least `low`.

    Example:
        >>> is_int(3, 1), is_int(True, 1), is_int(3, 4)
        (True, False, False)
    """
    return type(value) is int and low <= value


def check_positive_int(name: str, value: Any) -> int:
    """Return the value as an int, or raise unless it is a whole number, 1 or more."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}: {name} must be a whole number, 1 or more")
    return int(value)


def check_choice(name: str, value: str, *choices: str) -> str:
    """Return the value, or raise unless it is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose {' or '.join(map(repr, choices))}")
    return value


def check_bool(name: str, value: bool) -> bool:
    """Return the value, or raise unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60}: {name} must be True or False")
    return value


def check_perturbation(perturbation: Any) -> Any:
    """Return the perturbation, or raise unless it has the methods `draw` and `apply`."""
    if isinstance(perturbation, type):
        raise TypeError(f"{perturbation.__name__} is a class; pass an instance, {perturbation.__name__}(...)")
    if isinstance(perturbation, list | tuple):
        raise TypeError(f"{a_type(perturbation)} is not a perturbation; use Compose(a, b) to apply several")
    if not (callable(getattr(perturbation, "draw", None)) and callable(getattr(perturbation, "apply", None))):
        raise TypeError(
            f"{a_type(perturbation)} is not a perturbation: it needs the methods draw(batch, generator) and "
            "apply(batch, draw); wrap an ordinary transform in Transform(...)"
        )
    return perturbation


def are_probabilities(target: Tensor) -> bool:
    """Whether targets (B, C, ...) are nonnegative and sum to 1 over the classes, up to rounding."""
    return target.ndim >= 2 and bool((target >= 0).all()) and bool(((target.sum(1) - 1).abs() < 0.01).all())


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on this device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refuse_batch_norm(model: Any, what: str, instead: str, *, running: bool = False) -> None:
    """Raise if BatchNorm would normalize several copies with the statistics of one mixed batch.

    Args:
        model: Checked with all its submodules.
        what: The setting that puts several copies into one batch.
        instead: What to do instead.
        running: Whether train-mode BatchNorm uses its running statistics.
    """
    for module in model.modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if norm and (module.running_mean is None or (module.training and not running)):
            raise ValueError(f"with {what}, BatchNorm would normalize several copies as one batch; {instead}")


def check_settings_agree(objective: Any, *, custom_loss: bool) -> None:
    """Raise if the settings of a MaxUp objective contradict each other."""
    if objective.masks == "independent" and objective.strategy != "retain":
        raise ValueError(
            "masks='independent' needs strategy='retain', because a second pass cannot repeat the masks of each copy"
        )
    if objective.dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype={objective.dtype} is invalid; use torch.float32, torch.bfloat16 or torch.float16")
    defaults = {"norm": "batch", "chunk_size": 1, "dtype": None, "dropout": True, "compile": False}
    defaults |= {"capture": False, "fast": False}
    for name, default in (defaults | {"shortlist": None}).items():
        if objective.strategy != "recompute" and (value := getattr(objective, name)) != default:
            raise ValueError(
                f"{name}={value!r} needs strategy='recompute', but strategy={objective.strategy!r}; remove one of them"
            )
    if objective.fast and objective.shortlist is not None:
        raise ValueError(f"fast=True and shortlist={objective.shortlist} cannot be combined; remove one of them")
    if objective.score == "kl" and custom_loss:
        raise ValueError(
            "score='kl' subtracts the label entropy from the cross-entropy; use score='loss' with a custom loss_fn"
        )


def check_real(who: str, name: str, value: Any, expected: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """Return the value as a float, or raise unless it is a number in the range [low, high].

    Example:
        >>> check_real("Affine", "degrees", "ten", "between 0 and 180", 0, 180)
        Traceback (most recent call last):
        ValueError: Affine(degrees='ten'): degrees must be between 0 and 180
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not max(low, -LARGEST) <= value <= min(high, LARGEST):
        raise ValueError(f"{who}({name}={format_value(value)}): {name} must be {expected}")
    return float(value)


def check_int(who: str, name: str, value: Any, low: int, unit: str = "") -> int:
    """Return the value as an int, or raise unless it is a whole number from `low` to a million.

    The message says `who(name=value): name must be a whole number`, followed by `unit`.
    """
    number = isinstance(value, Integral) and not isinstance(value, bool)  # numpy integers too
    if not number or not low <= value <= MANY:
        most = f"{low} to {MANY}" if number and value > MANY else f"{low} or more"
        raise ValueError(f"{who}({name}={format_value(value)}): {name} must be a whole number{unit}, {most}")
    return int(value)


def check_ids(who: str, name: str, values: Any) -> tuple[int, ...]:
    """Return token ids as a tuple, or raise unless they are a list or a tensor of whole numbers."""
    if isinstance(values, Tensor):
        values = values.flatten().tolist()
    if not isinstance(values, list | tuple | set):
        raise ValueError(f"{who}({name}={format_value(values)}): {name} must be a list of token ids")
    return tuple(check_int(who, name, value, 0, ", a token id") for value in values)


def check_fill(who: str, value: Any) -> float:
    """Return the fill value of pixels, or raise unless it is a finite number."""
    return check_real(who, "fill", value, "a finite number, the same for all channels")


def check_mask_fill(who: str, value: Any) -> int:
    """Return the label for mask pixels from outside the image, or raise unless it is a whole number."""
    return check_int(who, "mask_fill", value, -MANY, " that your loss ignores")


def check_num_classes(who: str, value: Any) -> int | None:
    """Return the number of classes, or None if it is not given, as for probability targets."""
    return None if value is None else check_int(who, "num_classes", value, 1)

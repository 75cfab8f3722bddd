"""Bad input is refused here: one sentence that says what came, what was wanted and what to do."""

import math
import sys
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import Batch, batch_size, leaves
from maxup.errors import MaxUpWarning, error_message, format_value
from maxup.losses import IGNORE_INDEX


def check_model(model: Any) -> None:
    """A module, whose state can be protected while copies are scored."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model is a {type(model).__name__}, not an nn.Module, so scoring could leave traces in it; pass the "
            "module itself (several as an nn.ModuleList) and say how it is called with forward="
        )


def check_batch(batch: Batch) -> None:
    """x and y hold the same number of examples, at least one."""
    x, y = batch
    if not leaves((x, None)):
        raise TypeError(f"x is a {type(x).__name__} without tensors; pass a tensor, or a tuple or dict of tensors")
    if is_list_of_dicts(y, batch_size((x, None))) or (isinstance(x, list | tuple) and is_list_of_dicts(y, len(x))):
        raise TypeError(
            f"y is a {type(y).__name__} of {len(y)} dicts, one per example; pass one dict of tensors with the batch "
            "first, padded where examples differ, as in boxes (B, N, 4)"
        )
    sizes = [len(leaf) for leaf in leaves(batch)]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"x holds {batch_size((x, None))} examples but some tensor of x or y holds "
            f"{next(s for s in sizes if s != sizes[0])}; the first dimension of all must be the batch"
        )
    if sizes[0] == 0:
        raise ValueError("the batch is empty; pass at least one example")


def is_list_of_dicts(y: Any, examples: int) -> bool:
    """Whether targets are dicts, one per example, as torchvision's detectors take them."""
    return isinstance(y, list | tuple) and len(y) == examples and all(isinstance(target, Mapping) for target in y)


def check_values(x: Any) -> None:
    """No NaN in x. It reads values, which makes a GPU wait: for CPU tensors, and a first batch."""
    for leaf in leaves((x, None)):
        # A sum is the cheapest thing that shows a NaN; only if it does, look at every value (inf - inf is NaN too).
        if leaf.is_floating_point() and bool(leaf.sum().isnan()) and bool(leaf.isnan().any()):
            raise ValueError(f"x holds NaN in a tensor of shape {tuple(leaf.shape)}; clean the data first")


def check_copy(copy: Batch, wanted: int) -> None:
    """A perturbed copy is a pair (x, y) and holds as many examples as it should."""
    if not isinstance(copy, tuple) or len(copy) != 2:
        raise TypeError(f"the perturbation's apply returned a {type(copy).__name__}; it must return the pair (x, y)")
    for leaf in leaves(copy):
        if len(leaf) != wanted:
            raise ValueError(
                f"the perturbation turned {wanted} examples into {len(leaf)}; it must keep the first dimension"
            )


def check_classification(output: Any, target: Any, look_at_values: bool) -> None:
    """What the default loss can take: logits (B, C, ...), and class ids (B, ...) or probabilities (B, C, ...)."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__}, but the loss wants logits (B, C); "
            "say how to call the model with forward=, or pass a loss_fn="
        )
    if not isinstance(target, Tensor):
        raise TypeError(f"y is a {type(target).__name__}, but the default loss wants a tensor; pass a loss_fn=")
    if target.ndim == 0 or output.ndim < 2 or len(output) != len(target) or output.shape[1] < 2:
        raise ValueError(
            f"the model returned shape {tuple(output.shape)} for targets of shape {tuple(target.shape)}, "
            "but the default loss wants (B, C) with at least 2 classes; pass the loss_fn= of your own loop"
        )
    ids = output.shape[:1] + output.shape[2:]  # (B, ...)
    if target.is_floating_point():
        if target.shape == ids:
            raise ValueError(
                f"y is {target.dtype} of shape {tuple(target.shape)}, but class ids must be integers; "
                "use y.long(), or pass the loss_fn= of your own loop if y holds no classes"
            )
        if target.shape != output.shape:
            raise ValueError(
                f"targets of shape {tuple(target.shape)} are not probabilities for outputs {tuple(output.shape)}; "
                "pass the loss_fn= of your own loop"
            )
        if look_at_values and not are_probabilities(target):
            raise ValueError(
                "floating targets must be probabilities, rows of numbers from 0 to 1 that sum to 1, for the default "
                "loss, the cross-entropy; pass the loss_fn= of your own loop"
            )
    elif target.shape != ids:
        do = f"pass class ids {tuple(ids)}, probabilities {tuple(output.shape)} as floats, or a loss_fn="
        if output.ndim == 3 and target.shape == output.shape[:2]:
            do = "pass loss_fn=maxup.token_cross_entropy, or maxup.next_token_cross_entropy for a causal language model"
        raise ValueError(
            f"targets have shape {tuple(target.shape)}, but the model returned shape {tuple(output.shape)}, where the "
            f"default loss takes the second dimension for the classes; {do}"
        )
    elif look_at_values:
        _check_ids(target[target.long() != IGNORE_INDEX], output.shape[1])


def check_tokens(output: Any, target: Any, look_at_values: bool) -> None:
    """What the losses of sequences can take: logits (B, T, V), and token ids (B, T)."""
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (output, target)]
    if not isinstance(output, Tensor) or output.ndim != 3 or shapes[1] != shapes[0][:2]:
        raise ValueError(
            f"the model returned {shapes[0]} for targets {shapes[1]}, but this loss wants logits (B, T, V) and token "
            "ids (B, T); say how to call the model with forward=, as in forward=lambda model, x: model(**x).logits"
        )
    check_classification(output.transpose(1, 2), target, look_at_values)


def _check_ids(ids: Tensor, num_classes: int) -> None:
    """Class ids in 0 ... num_classes - 1. Reads values."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_classes:
        raise ValueError(
            f"labels run from {int(ids.min())} to {int(ids.max())}, but the model has {num_classes} outputs, 0 to "
            f"{num_classes - 1}; fix the labels or the model's last layer, and set labels to ignore to {IGNORE_INDEX}"
        )


def explain_call(x: Any, error: Exception) -> str | None:
    """What to do where model(x) failed, if x is of a kind that few models take: a dict, or images as bytes."""
    if isinstance(x, Mapping) and isinstance(error, TypeError | AttributeError | ValueError | LookupError):
        said = error_message(error)
        why = "" if "dict" in said else f" ({said})"  # torch's own words for "this is a dict" are long
        return (
            f"x is a dict with the keys {list(x)}, and the model cannot be called as model(x){why}; say how with "
            "forward=, as in forward=lambda model, x: model(**x).logits"
        )
    if isinstance(x, list | tuple) and isinstance(error, TypeError | AttributeError | ValueError):
        return (
            f"x is a {type(x).__name__} of {len(x)}, and the model cannot be called as model(x); say how with "
            "forward=, as in forward=lambda model, x: model(*x)"
        )
    images = [leaf for leaf in leaves((x, None)) if leaf.dtype == torch.uint8 and leaf.ndim > 2]
    if images and isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        return (
            f"x holds torch.uint8 images of shape {tuple(images[0].shape)}, and the model failed on them "
            f"({error_message(error)}); scale them first, as in x.float() / 255"
        )
    return None


def warn(message: str) -> None:
    """Issue a MaxUpWarning at the line that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("maxup", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, MaxUpWarning, stacklevel=level)


def check_losses(losses: Any, wanted: int) -> None:
    """A loss is one number for every example."""
    if not isinstance(losses, Tensor) or losses.shape != (wanted,):
        what = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise ValueError(
            f"the loss returned {what} for {wanted} examples; it must return one number for each, shape ({wanted},): "
            "use reduction='none', and average further dimensions as in losses.flatten(1).mean(1)"
        )


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is a whole number of Python's, in a range.

    Example:
        >>> is_whole(3, 1), is_whole(True, 1), is_whole(3, 1, 2)
        (True, False, False)
    """
    return type(value) is int and least <= value <= most


def check_whole(name: str, value: Any) -> int:
    """A whole number, 1 or more."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}: {name} must be a whole number, 1 or more")
    return int(value)


def check_choice(name: str, value: str, *choices: str) -> str:
    """One of the words a knob knows."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose {' or '.join(map(repr, choices))}")
    return value


def check_perturbation(perturbation: Any) -> Any:
    """Something with `draw` and `apply`."""
    if isinstance(perturbation, type):
        raise TypeError(f"{perturbation.__name__} is a class; pass an object, {perturbation.__name__}(...)")
    if isinstance(perturbation, list | tuple):
        raise TypeError(f"a {type(perturbation).__name__} is not a perturbation; use Compose(a, b) to apply several")
    if not (callable(getattr(perturbation, "draw", None)) and callable(getattr(perturbation, "apply", None))):
        raise TypeError(
            f"a {type(perturbation).__name__} is no perturbation: it needs the methods draw(batch, generator) and "
            "apply(batch, draw); wrap an ordinary transform as Transform(...)"
        )
    return perturbation


def are_probabilities(target: Tensor) -> bool:
    """Whether rows (B, C, ...) are numbers from 0 to 1 that sum to 1, to rounding. Reads values."""
    return target.ndim >= 2 and bool((target >= 0).all()) and bool(((target.sum(1) - 1).abs() < 0.01).all())


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refuse_batch_norm(model: Any, what: str, instead: str, *, running: bool = False) -> None:
    """Several copies in one batch would be normalized with statistics of the mixture."""
    for module in model.modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if norm and (module.running_mean is None or (module.training and not running)):
            raise ValueError(f"{what} would let BatchNorm see several copies as one batch; {instead}")


def check_settings_agree(
    strategy: str, norm: str, chunk_size: int, dtype: Any, score: str, masks: str, *, custom_loss: bool
) -> None:
    """Combinations of MaxUp's knobs that make no sense."""
    if masks == "independent" and strategy != "retain":
        raise ValueError(
            "masks='independent' needs strategy='retain': masks drawn per copy cannot be repeated in a second pass"
        )
    if dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype={dtype}: scoring runs in torch.float32, torch.bfloat16 or torch.float16")
    for name, value, default in (("norm", norm, "batch"), ("chunk_size", chunk_size, 1), ("dtype", dtype, None)):
        if strategy == "retain" and value != default:
            raise ValueError(
                f"strategy='retain' trains on the pass that scores, so {name}={value!r} has no effect; drop it"
            )
    if score == "kl" and custom_loss:
        raise ValueError(
            "score='kl' subtracts label entropy from the cross-entropy; with a loss of your own use score='loss'"
        )


LARGEST = 3.4e38  # of float32, nearly


MANY = 10**6


ABOVE_0 = math.ulp(0.0)


BELOW_1 = math.nextafter(1.0, 0.0)


def check_real(who: str, name: str, value: Any, wanted: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """A number between two others, or a sentence with what is wanted instead.

    Example:
        >>> check_real("Affine", "degrees", "ten", "between 0 and 180", 0, 180)
        Traceback (most recent call last):
        ValueError: Affine(degrees='ten'): degrees must be between 0 and 180
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not max(low, -LARGEST) <= value <= min(high, LARGEST):
        raise ValueError(f"{who}({name}={format_value(value)}): {name} must be {wanted}")
    return float(value)


def check_int(who: str, name: str, value: Any, low: int, unit: str = "") -> int:
    """A whole number, at least `low` and at most a million.

    Example:
        >>> check_int("Cutout", "length", 8, 1, " of pixels")
        8
    """
    number = isinstance(value, Integral) and not isinstance(value, bool)  # numpy's too
    if not number or not low <= value <= MANY:
        most = f"{low} to {MANY}" if number and value > MANY else f"{low} or more"
        raise ValueError(f"{who}({name}={format_value(value)}): {name} must be a whole number{unit}, {most}")
    return int(value)


def check_fill(who: str, value: Any) -> float:
    """The value of pixels that are filled in, the same in every channel."""
    return check_real(who, "fill", value, "a finite number, the same for all channels")


def check_mask_fill(who: str, value: Any) -> int:
    """The label of pixels in a mask that have no source."""
    return check_int(who, "mask_fill", value, -MANY, " that your loss ignores")


def check_num_classes(who: str, value: Any) -> int | None:
    """A number of classes, or None where targets are probabilities, which know it."""
    return None if value is None else check_int(who, "num_classes", value, 1)

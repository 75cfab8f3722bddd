"""Cross-entropy per example, for classes, pixels and tokens. Targets of -100 are ignored."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORE_INDEX = -100  # default of F.cross_entropy


def cross_entropy(output: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy per example: logits (B, C, ...) and targets -> (B,).

    Targets are class ids (B, ...) or probabilities (B, C, ...), as for `F.cross_entropy`. The loss of an example is the
    mean over its positions whose target is not -100, and 0 if there are none. For logits with the classes last,
    (B, T, V), use `token_cross_entropy`. `label_smoothing` is that of `F.cross_entropy`.

    Example:
        >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor([1.3863, 1.3863])
        >>> cross_entropy(torch.zeros(2, 4, 3), torch.tensor([[0, 3, -100], [-100, -100, -100]]))
        tensor([1.3863, 0.0000])
    """
    output = in_float32(output)
    if target.is_floating_point():
        target = target.to(output.dtype)
        losses = F.cross_entropy(output, target, reduction="none", label_smoothing=label_smoothing)
        return losses.reshape(len(losses), -1).mean(1) if losses.ndim > 1 else losses
    losses = F.cross_entropy(output, target.long(), reduction="none", label_smoothing=label_smoothing)
    if losses.ndim == 1:
        return losses  # losses are (B, ...), 0 where ignored
    return losses.flatten(1).sum(1) / _counted(target).clamp(min=1)


def in_float32(output: Tensor) -> Tensor:
    """Return an output in float32 or more, as under autocast: the losses of similar copies would tie in half precision.

    Example:
        >>> in_float32(torch.zeros(2, dtype=torch.bfloat16))
        tensor([0., 0.])
    """
    return output.to(torch.promote_types(output.dtype, torch.float32))


def token_cross_entropy(output: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy per sequence, for masked LMs and seq2seq: logits (B, T, V), token ids (B, T) -> (B,).

    The loss of a sequence is the mean over its tokens whose target is not -100, and 0 if there are none.

    Example:
        >>> token_cross_entropy(torch.zeros(2, 3, 4), torch.tensor([[0, 3, -100], [-100, -100, -100]]))
        tensor([1.3863, 0.0000])
    """
    return cross_entropy(output.transpose(1, 2), target, label_smoothing=label_smoothing)


def next_token_cross_entropy(output: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """`token_cross_entropy` for causal LMs: the logits at position t predict the token at position t + 1.

    Pass the input ids as targets, with -100 for padding. The first token is never predicted.

    Example:
        >>> next_token_cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[0, 3, -100]]))
        tensor([1.3863])
    """
    return token_cross_entropy(output[:, :-1], target[:, 1:], label_smoothing=label_smoothing)


TOKENS = (token_cross_entropy, next_token_cross_entropy)


def mean_loss(loss: Any, losses: Tensor, target: Any) -> Tensor:
    """Return the loss of a batch from its losses per example, (B,) -> ().

    For the losses in this file, this is the mean over all positions that are not ignored, which equals
    `F.cross_entropy(output, target)`. If every target is ignored, it is 0, not NaN. For other losses and for
    probabilities, it is the mean over examples.

    Example:
        >>> target = torch.tensor([[0, 3, 1], [2, -100, -100]])
        >>> mean_loss(cross_entropy, torch.tensor([1.0, 5.0]), target)  # 3 positions and 1
        tensor(2.)
    """
    loss = without_arguments(loss)
    if loss not in (cross_entropy, *TOKENS) or target.is_floating_point():
        return losses.mean()
    counted = _counted(target[:, 1:] if loss is next_token_cross_entropy else target)
    total = (losses.to(torch.promote_types(losses.dtype, torch.float32)) * counted).sum()
    return (total / counted.sum().clamp(min=1)).to(losses.dtype)


def without_arguments(loss: Any) -> Any:
    """Return the loss inside `functools.partial(loss, label_smoothing=0.1)`, or the loss itself.

    Example:
        >>> without_arguments(partial(cross_entropy, label_smoothing=0.1)) is cross_entropy
        True
    """
    return loss.func if isinstance(loss, partial) else loss


def _counted(target: Tensor) -> Tensor:
    """Return the number of positions per example that are not ignored: (B, ...) -> (B,)."""
    return (target.long() != IGNORE_INDEX).reshape(len(target), -1).sum(1)

"""The loss per example of what a trainer trains: a criterion of timm or torch, or a Hugging Face model."""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from maxup.losses import IGNORE_INDEX, cross_entropy, in_float32, next_token_cross_entropy, token_cross_entropy
from maxup.objectives.base import LossFn


def criterion_per_example(criterion: Any) -> LossFn:
    """Return the per-example version of a criterion of timm or torch, `loss_fn(output, target) -> (B,)`."""
    from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy

    plain = type(criterion) is nn.CrossEntropyLoss and criterion.weight is None and not criterion.label_smoothing
    if (plain and criterion.ignore_index == IGNORE_INDEX) or isinstance(criterion, SoftTargetCrossEntropy):
        return cross_entropy
    if isinstance(criterion, LabelSmoothingCrossEntropy):
        return partial(cross_entropy, label_smoothing=criterion.smoothing)
    if not hasattr(criterion, "reduction"):
        raise ValueError(
            f"the criterion {type(criterion).__name__} is not known per example; pass a per-example loss, "
            "MaxUp(..., loss_fn=)"
        )
    return partial(_unreduced, criterion)


def _unreduced(criterion: nn.Module, output: Tensor, target: Tensor) -> Tensor:
    """Return the losses that the criterion reduces, (B,)."""
    unreduced, sums = copy(criterion), getattr(criterion, "sum_classes", False)
    vars(unreduced).update(reduction="none", sum_classes=False)
    losses = unreduced(in_float32(output), target).reshape(len(output), -1)  # (B, C) for binary losses
    return losses.sum(1) if sums else losses.mean(1)


def model_loss_per_example(model: Any, labels: Tensor, label_smoothing: float = 0.0) -> LossFn:
    """Return the loss per example of a Hugging Face model, `loss_fn(logits, labels) -> (B,)`."""
    from transformers.loss import loss_utils as hf
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, config = getattr(model, "loss_type", None), getattr(model, "config", None)
    loss, per_example = hf.LOSS_MAPPING.get(kind), hf.ForSequenceClassificationLoss  # also of images, videos and audio
    if kind and loss not in (per_example, hf.ForTokenClassification, hf.ForMaskedLMLoss, hf.ForCausalLMLoss):
        raise ValueError(f"the loss {kind} is not known per example; pass a per-example loss, MaxUp(..., loss_fn=)")
    problem = getattr(config, "problem_type", None)
    tokens = labels.ndim == 2 and not labels.is_floating_point() and loss is not per_example
    if not tokens and (problem == "regression" or (problem is None and getattr(config, "num_labels", None) == 1)):
        return partial(_elementwise, F.mse_loss)
    if labels.is_floating_point():
        return partial(_elementwise, F.binary_cross_entropy_with_logits)  # multi-label
    loss_fn = cross_entropy
    if tokens:
        named = {base.__name__ for base in type(model).__mro__} & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
        causal = not getattr(config, "is_encoder_decoder", False) and (named or loss is hf.ForCausalLMLoss)
        loss_fn = next_token_cross_entropy if causal else token_cross_entropy
    return partial(loss_fn, label_smoothing=label_smoothing) if label_smoothing else loss_fn


def _elementwise(loss: Callable[..., Tensor], output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of an elementwise loss per example, (B,)."""
    output = in_float32(output).flatten(1)
    return loss(output, target.reshape(output.shape).to(output.dtype), reduction="none").mean(1)


def soft_cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, **options: Any) -> Tensor:
    """Return the cross-entropy with labels that are probabilities, as a `compute_loss_func` of the Trainer."""
    losses = cross_entropy(get_logits(outputs), labels, **options)
    return losses.sum() / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def get_logits(outputs: Any) -> Tensor:
    """Return the logits of a Hugging Face model, of a dict or a tuple of outputs."""
    return outputs["logits"] if isinstance(outputs, dict) else outputs[0]

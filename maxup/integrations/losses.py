"""The loss per example of what a trainer trains: a criterion of timm or torch, or a Hugging Face model."""

from copy import copy
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from maxup.losses import IGNORE_INDEX, cross_entropy, in_float32, next_token_cross_entropy, token_cross_entropy
from maxup.objectives.base import LossFn

PER_EXAMPLE = ("SequenceClassification", "ImageClassification", "VideoClassification", "AudioClassification")
PER_TOKEN = ("TokenClassification", "MaskedLM", "CausalLM", "ConditionalGeneration")


def criterion_per_example(criterion: Any) -> LossFn:
    """Return the per-example version of a criterion of timm or torch, `loss_fn(output, target) -> (B,)`."""
    from timm.loss import JsdCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy

    plain = type(criterion) is nn.CrossEntropyLoss and criterion.weight is None and not criterion.label_smoothing
    if (plain and criterion.ignore_index == IGNORE_INDEX) or isinstance(criterion, SoftTargetCrossEntropy):
        return cross_entropy
    if isinstance(criterion, LabelSmoothingCrossEntropy):
        return partial(cross_entropy, label_smoothing=criterion.smoothing)
    if isinstance(criterion, JsdCrossEntropy) or not hasattr(criterion, "reduction"):
        raise ValueError(
            f"the criterion {type(criterion).__name__} is not known per example; pass a per-example loss, "
            "MaxUp(..., loss_fn=)"
        )
    return partial(_unreduced, criterion)


def _unreduced(criterion: nn.Module, output: Tensor, target: Tensor) -> Tensor:
    """Return the losses that the criterion reduces, (B,)."""
    unreduced, sums = copy(criterion), getattr(criterion, "sum_classes", False)
    vars(unreduced).update(reduction="none", sum_classes=False)
    losses = unreduced(in_float32(output), target).view(len(output), -1)  # (B, C) for binary losses
    return losses.sum(1) if sums else losses.mean(1)


def model_loss_per_example(model: Any, labels: Tensor, label_smoothing: float = 0.0) -> LossFn:
    """Return the loss per example of a Hugging Face model, `loss_fn(logits, labels) -> (B,)`."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, config = getattr(model, "loss_type", None) or "", getattr(model, "config", None)
    if kind and not kind.endswith((*PER_EXAMPLE, *PER_TOKEN)):
        raise ValueError(f"the loss {kind} is not known per example; pass a per-example loss, MaxUp(..., loss_fn=)")
    problem = getattr(config, "problem_type", None)
    if problem == "regression" or (problem is None and getattr(config, "num_labels", None) == 1):
        return squared_error
    if labels.is_floating_point():
        return binary_cross_entropy
    tokens = labels.ndim == 2 and not kind.endswith(PER_EXAMPLE)
    loss_fn = token_cross_entropy if tokens else cross_entropy
    if tokens and not getattr(config, "is_encoder_decoder", False):
        known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        named = any(kind.__name__ in known for kind in type(model).__mro__)  # also of a subclass
        loss_fn = next_token_cross_entropy if named or LOSS_MAPPING.get(kind) is ForCausalLMLoss else loss_fn
    return partial(loss_fn, label_smoothing=label_smoothing) if label_smoothing else loss_fn


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error per example, (B,)."""
    output = in_float32(output).flatten(1)
    return F.mse_loss(output, target.view(len(target), -1).to(output.dtype), reduction="none").mean(1)


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy of multi-label targets per example, (B,)."""
    output = in_float32(output)
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none").mean(1)

"""Torch's fast path for attention, which computes another function than the training pass."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@contextmanager
def attention_as_in_training(*models: nn.Module) -> Iterator[None]:
    """Let passes without gradients compute attention as the training pass does.

    Without gradients, attention in evaluation mode takes a fast path that ignores hooks and subclasses, and returns
    zeros for padding. It is off inside this context if the training pass will not take it.

    Args:
        models: Modules that are called, in the modes of the training pass. Trained layers of one do not affect the
            attention of another.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(
        enabled and not any(is_attention_trained(model.modules()) for model in models)
    )
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def is_attention_trained(modules: Iterable[nn.Module]) -> bool:
    """Whether an attention layer is in training mode, or it or a layer before it has weights that are trained.

    Example:
        >>> layer = nn.MultiheadAttention(8, 2).eval()
        >>> is_attention_trained([layer]), is_attention_trained([layer.requires_grad_(False)])
        (True, False)
    """
    trained = False
    for module in modules:
        if isinstance(module, ATTENTION):
            if module.training or trained or any(weight.requires_grad for weight in module.parameters()):
                return True
        elif not trained:
            trained = any(weight is not None and weight.requires_grad for weight in module._parameters.values())
    return False

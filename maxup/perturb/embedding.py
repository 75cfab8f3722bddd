"""Embedding dropout (Merity et al., 2017), the perturbation of the paper's language models."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from maxup.batch import Batch, SharedDraw, batch_size, expand_like
from maxup.errors import a_type
from maxup.perturb.base import constant, uniform
from maxup.perturb.in_model import InModelPerturbation, attach_to, find_layer
from maxup.validate import BELOW_1, check_ids, check_real


class EmbeddingDropout(InModelPerturbation):
    """Drop words: every occurrence of a dropped word gets a zero embedding, and the others are scaled by 1 / (1 - p).

    The draw is a `SharedDraw` mask over the vocabulary: all examples of a copy share one mask, and a winner keeps the
    mask of its copy. Tokens must be (B, T), with the batch first.

    Args:
        p: Probability of dropping a word.
        layer: Name of the `nn.Embedding`, as in `model.named_modules()`. Default: the model's only embedding.
        keep: Ids of words that are never dropped and not scaled, such as `tokenizer.all_special_ids`.

    Example:
        >>> model = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(5 * 8, 2))
        >>> words = EmbeddingDropout(0.5)
        >>> model = words.attach(model)
        >>> from maxup import MaxUp
        >>> loss = MaxUp(words, m=2)(model, torch.randint(100, (4, 5)), torch.tensor([0, 1, 0, 1]))
        >>> loss.backward()
    """

    def __init__(self, p: float = 0.1, *, layer: str | None = None, keep: Sequence[int] | Tensor = ()) -> None:
        self.p = check_real("EmbeddingDropout", "p", p, "at least 0 and below 1", 0, BELOW_1)
        self.layer = layer if layer is None else str(layer)  # YAML may read "1" as a number
        self.keep = check_ids("EmbeddingDropout", "keep", keep)
        self.words: nn.Embedding | None = None  # not its weight, which FSDP and `to_empty` replace

    def attach(self, model: nn.Module) -> nn.Module:
        layer = self._embedding(model)
        if max(self.keep, default=0) >= len(layer.weight):
            raise ValueError(
                f"EmbeddingDropout(keep=...): id {max(self.keep)} is not in the vocabulary of {len(layer.weight)} "
                "words; remove it"
            )
        self.hooks, self.words = (attach_to(layer, scale_words),), layer
        return model

    def _embedding(self, model: nn.Module) -> nn.Embedding:
        if self.layer is not None:
            layer = find_layer(model, self.layer, "EmbeddingDropout")
            if not isinstance(layer, nn.Embedding):
                raise TypeError(f"EmbeddingDropout: {self.layer!r} is {a_type(layer)}, not an nn.Embedding")
            return layer
        embeddings = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)}
        if len(embeddings) != 1:
            raise ValueError(
                f"EmbeddingDropout: the model has {len(embeddings)} embeddings ({', '.join(embeddings) or 'none'}); "
                "name one with layer="
            )
        return next(iter(embeddings.values()))

    def draw(self, batch: Batch, generator: Generator | None) -> SharedDraw:
        self._require_hooks()
        assert self.words is not None
        weight = self.words.weight
        like = torch.empty(0, dtype=weight.dtype, device=weight.device)
        u = uniform((1, len(weight)), 0, 1, like, generator)  # (1, V)
        scale = (u >= self.p).to(u.dtype) / (1 - self.p)
        if self.keep:
            scale.index_fill_(1, constant(self.keep, like.device, torch.long), 1)
        return SharedDraw(scale, torch.zeros(batch_size(batch), dtype=torch.long, device=like.device))


def scale_words(tokens: Tensor, embedded: Tensor, masks: SharedDraw) -> Tensor:
    """Multiply each word's embedding by its entry in the example's mask: tokens (B, T), embedded (B, T, D)."""
    if len(tokens) != len(masks.index):
        raise ValueError(
            f"the embedding got {len(tokens)} rows, but the draw is for {len(masks.index)}; put the batch first, (B, T)"
        )
    scale = masks.values[expand_like(masks.index, tokens), tokens]  # (B, T)
    return embedded * scale[..., None].to(embedded.dtype)

"""Token dropout: replace random tokens with the mask token, as the masking of BERT does (Devlin et al., 2019)."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, get_leaves, set_leaves
from maxup.errors import a_type
from maxup.perturb.base import Perturbation, constant, uniform
from maxup.validate import check_ids, check_int, check_real


class TokenDropout(Perturbation):
    """With probability p, replace each token with the mask token. The draw is a boolean mask, (B, T).

    It changes the token ids in x, so it works with `select`, and needs no `attach`. Targets are unchanged.

    Args:
        p: Probability of replacing a token.
        mask_id: Id that replaces it: the id of a mask token or of an unknown word, such as `tokenizer.mask_token_id`.
        keep: Ids that are never replaced, such as `tokenizer.all_special_ids`, which include padding. A list or tensor.
        key: Which entry of x holds the token ids, such as "input_ids". Default: x itself.

    Example:
        >>> tokens = torch.tensor([[101, 7592, 2088, 102, 0, 0]])
        >>> x, _ = TokenDropout(1.0, mask_id=103, keep=[0, 101, 102])(tokens)
        >>> x
        tensor([[101, 103, 103, 102,   0,   0]])
    """

    def __init__(
        self, p: float, mask_id: int, *, keep: Sequence[int] | Tensor = (), key: Hashable | None = None
    ) -> None:
        self.p = check_real("TokenDropout", "p", p, "between 0 and 1", 0, 1)
        self.mask_id = check_int("TokenDropout", "mask_id", mask_id, 0, ", a token id")
        self.keep, self.key = check_ids("TokenDropout", "keep", keep), key

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        tokens = self._tokens(batch[0])
        dropped = uniform(tuple(tokens.shape), 0, 1, tokens, generator) < self.p
        if self.keep:
            kept = constant(self.keep, tokens.device, torch.long)
            dropped = dropped & (tokens[..., None] != kept).all(-1)
        return dropped

    def apply(self, batch: Batch, draw: Tensor) -> Batch:
        x, y = batch
        tokens = self._tokens(x)
        if self.mask_id > torch.iinfo(tokens.dtype).max:
            raise ValueError(
                f"TokenDropout(mask_id={self.mask_id}) does not fit {tokens.dtype} token ids; convert them to int64"
            )
        return set_leaves(x, [tokens.masked_fill(draw, self.mask_id)], self.key), y

    def _tokens(self, x: Any) -> Tensor:
        found = get_leaves(x, self.key) if isinstance(x, Tensor) or self.key is not None else []
        if len(found) == 1 and not (found[0].is_floating_point() or found[0].dtype == torch.bool):
            return found[0]
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else a_type(x)
        raise ValueError(
            f"TokenDropout expects integer token ids (B, T), but x is {what} and key={self.key!r}; name the ids, such "
            "as key='input_ids'"
        )

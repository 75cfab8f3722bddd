"""Where the worst copy is chosen: a running maximum over copies, per example.

`RunningMax.update` compares the scores of new copies with the highest score so far, and keeps the draw of the higher
one. Only one draw per example is kept, so memory does not grow with m.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from maxup.batch import Draw, clone, take, where
from maxup.perturb.labels import entropy


class RunningMax:
    """Keep, per example, the draw with the highest score of all copies so far.

    Args:
        score: "loss" scores a copy by its loss, "kl" by its loss minus the entropy of its (mixed) label, "easiest" by
            its negative loss.

    Attributes:
        draw: Draws of the winners, the worst copies so far.
        scores: Their scores, (B,).
        copy: Index of the winner among the scored copies, (B,).
        shortlist: Indices of the scored copies among all m, (k, B), if only some of them were scored; otherwise None.
        losses: Losses of every scored copy so far, a list of m or k tensors (B,).
        all_scores: Scores of every scored copy so far, like `losses`.
        gap_kept: Share of the loss gap that an approximate selection kept, a scalar, in steps that check it.

    Example:
        >>> worst = RunningMax()
        >>> worst.update([torch.tensor([10, 20])], torch.tensor([1.0, 4.0]), None)
        >>> worst.update([torch.tensor([11, 21])], torch.tensor([2.0, 3.0]), None)
        >>> worst.draw, worst.copy
        (tensor([11, 20]), tensor([1, 0]))
    """

    def __init__(self, score: str = "loss") -> None:
        self.score = score
        self.draw: Draw = None
        self.scores: Tensor | None = None
        self.copy: Tensor | None = None
        self.shortlist: Tensor | None = None
        self.losses: list[Tensor] = []
        self.all_scores: list[Tensor] = []
        self.gap_kept: Tensor | None = None

    @property
    def copy_of_all(self) -> Tensor | None:
        """Index of the winner among all m copies, (B,)."""
        if self.copy is None or self.shortlist is None:
            return self.copy
        return self.shortlist.gather(0, self.copy[None])[0]

    def update(self, draws: list[Draw], losses: Tensor, target: Any) -> None:
        """Add k copies.

        Args:
            draws: Their draws, a list of k.
            losses: Their losses, (k * B,), copy after copy.
            target: Their targets, (k * B, ...).
        """
        losses, k = losses.detach(), len(draws)
        scores = to_scores(self.score, losses, target).view(k, -1)
        if k == 1:
            self._update(draws[0], scores[0], 0)
        else:
            best, winner = scores.max(0)  # the first one of equal scores
            self._update(take(draws, winner[None])[0], best, winner)
        self.losses.extend(losses.view(k, -1))
        self.all_scores.extend(scores)

    def clone(self) -> "RunningMax":
        """Return a copy with its own tensors."""
        found, k = copy.copy(self), len(self.losses)
        found.draw = clone(self.draw)
        for name in ("scores", "copy", "shortlist", "gap_kept"):
            tensor = getattr(self, name)
            setattr(found, name, None if tensor is None else tensor.clone())
        stacked = torch.stack([*self.losses, *self.all_scores])  # (2 * m, B), one kernel
        found.losses, found.all_scores = list(stacked[:k]), list(stacked[k:])
        return found

    def _update(self, draw: Draw, score: Tensor, index: Tensor | int) -> None:
        """Compare one draw per example with the winners. `index` is that of its copy among the new copies."""
        if self.scores is None or self.copy is None:
            self.draw, self.scores = draw, score
            self.copy = index if isinstance(index, Tensor) else torch.full_like(score, index, dtype=torch.long)
            return
        higher = score > self.scores  # (B,)
        self.draw = where(higher, draw, self.draw)
        self.scores = torch.where(higher, score, self.scores)
        self.copy = torch.where(higher, len(self.losses) + index, self.copy)


def to_scores(score: str, losses: Tensor, target: Any) -> Tensor:
    """Return the scores of copies from their losses, (N,). The highest score wins. `score` is as in `RunningMax`."""
    scores = -losses if score == "easiest" else losses
    if score == "kl" and target.is_floating_point():
        scores = losses - entropy(target)
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf)  # choose a copy with a NaN loss; do not hide it

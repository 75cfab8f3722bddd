"""The running maximum over copies."""

from typing import Any

import torch
from torch import Tensor

from maxup.batch import Draw, where
from maxup.perturb.labels import entropy


class RunningMax:
    """For every example, the draw with the highest score among the copies seen so far.

    Args:
        rank: "loss" scores a copy by its loss, "kl" by its loss less the entropy of its (mixed) label.

    Attributes:
        draw: The draws of the winners.
        score: Their scores, (B,).
        copy: The number of the copy that won, (B,).
        losses: The loss of every copy seen, m tensors (B,).

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
        self.losses: list[Tensor] = []

    def update(self, draws: list[Draw], losses: Tensor, target: Any) -> None:
        """Take k copies into account: their draws, their losses (k * B,) and their targets (k * B, ...)."""
        losses = losses.detach()
        mixed = self.score == "kl" and target.is_floating_point()
        scores = losses - entropy(target) if mixed else losses
        scores = scores.nan_to_num(nan=torch.inf, posinf=torch.inf)  # a broken copy is chosen and seen, not hidden
        k = len(draws)
        for draw, score, loss in zip(draws, scores.chunk(k), losses.chunk(k), strict=True):  # (B,) each
            self._update(draw, score)
            self.losses.append(loss)

    def _update(self, draw: Draw, score: Tensor) -> None:
        if self.scores is None or self.copy is None:
            self.draw, self.scores, self.copy = draw, score, torch.zeros_like(score, dtype=torch.long)
            return
        higher = score > self.scores
        self.draw = where(higher, draw, self.draw)
        self.scores = torch.where(higher, score, self.scores)
        self.copy = torch.where(higher, len(self.losses), self.copy)

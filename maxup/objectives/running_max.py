"""The running maximum over copies."""

from typing import Any

import torch
from torch import Tensor

from maxup.batch import Draw, where
from maxup.perturb.labels import entropy


class Worst:
    """For every example, the draw with the highest score among the copies seen so far.

    Args:
        rank: "loss" scores a copy by its loss, "kl" by its loss less the entropy of its (mixed) label.

    Attributes:
        draw: The draws of the winners.
        score: Their scores, (B,).
        copy: The number of the copy that won, (B,).
        losses: The loss of every copy seen, m tensors (B,).

    Example:
        >>> worst = Worst()
        >>> worst.see([torch.tensor([10, 20])], torch.tensor([1.0, 4.0]), None)
        >>> worst.see([torch.tensor([11, 21])], torch.tensor([2.0, 3.0]), None)
        >>> worst.draw, worst.copy
        (tensor([11, 20]), tensor([1, 0]))
    """

    def __init__(self, rank: str = "loss") -> None:
        self.rank = rank
        self.draw: Draw = None
        self.score: Tensor | None = None
        self.copy: Tensor | None = None
        self.losses: list[Tensor] = []

    def see(self, draws: list[Draw], losses: Tensor, target: Any) -> None:
        """Take k copies into account: their draws, their losses (k * B,) and their targets (k * B, ...)."""
        losses = losses.detach()
        mixed = self.rank == "kl" and target.is_floating_point()
        scores = losses - entropy(target) if mixed else losses
        scores = scores.nan_to_num(nan=torch.inf, posinf=torch.inf)  # a broken copy is chosen and seen, not hidden
        k = len(draws)
        for draw, score, loss in zip(draws, scores.chunk(k), losses.chunk(k), strict=True):  # (B,) each
            self._see(draw, score)
            self.losses.append(loss)

    def _see(self, draw: Draw, score: Tensor) -> None:
        if self.score is None or self.copy is None:
            self.draw, self.score, self.copy = draw, score, torch.zeros_like(score, dtype=torch.long)
            return
        higher = score > self.score
        self.draw = where(higher, draw, self.draw)
        self.score = torch.where(higher, score, self.score)
        self.copy = torch.where(higher, len(self.losses), self.copy)

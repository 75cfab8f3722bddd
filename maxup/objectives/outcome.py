"""What an objective returns for a batch, and a report about the selection."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from maxup.objectives.running_max import RunningMax
from maxup.perturb.labels import entropy
from maxup.validate import are_probabilities


@dataclass
class Report:
    """Statistics of a selection."""

    copies: int
    """Number of scored copies per example: m, or the length of the shortlist."""
    gap: float
    """Mean difference between the loss of the winner and the mean loss of all scored copies."""
    wins: list[int]
    """How many examples each scored copy won. With a shortlist: each place of the shortlist."""
    label_entropy: float
    """Mean entropy of the winners' labels in nats; 0 for class ids."""
    replay_error: float
    """Largest difference between a winner's loss in the training pass and in scoring."""
    gap_kept: float | None = None
    """Share of the loss gap that `fast` or `shortlist` kept: 1 is exact, 0 is random. None in steps without a check."""

    @property
    def replay_exact(self) -> bool:
        """Whether the training pass reproduced the scores exactly."""
        return self.replay_error == 0


@dataclass
class Outcome:
    """What an objective returns for a batch.

    Example:
        >>> from maxup import Gaussian, MaxUp
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> outcome = MaxUp(Gaussian(0.1), m=4).run(model, x, y)
        >>> outcome.loss.backward()
        >>> outcome.output.shape, sum(outcome.report.wins), outcome.report.replay_exact
        (torch.Size([8, 3]), 8, True)
    """

    loss: Tensor
    """Mean loss to backpropagate: over all targets that are not -100 with the default loss, otherwise over examples."""
    losses: Tensor
    """Losses of the examples trained on, (B,)."""
    output: Any
    """Outputs of the model for them."""
    target: Any
    """Their targets, mixed if the perturbation mixes labels."""
    worst: RunningMax | None = None
    """Draws, scores and indices of the winners; None if the objective does not select."""

    @property
    def draw(self) -> Any:
        """Draws of the examples trained on."""
        return None if self.worst is None else self.worst.draw

    @cached_property
    def report(self) -> Report | None:
        """Statistics of the selection; None if the objective does not select.

        Computed on first access, which synchronizes a GPU.
        """
        if self.worst is None:
            return None
        trained = self.losses.detach()
        losses = torch.stack(self.worst.losses or [trained])  # (m, B); m = 1 scores nothing
        copy = self.worst.copy if self.worst.copy is not None else torch.zeros_like(trained, dtype=torch.long)  # (B,)
        chosen = losses.gather(0, copy[None])[0]
        dtype = torch.promote_types(trained.dtype, chosen.dtype)  # not float64, which Apple's GPUs do not have
        mixed = isinstance(self.target, Tensor) and self.target.is_floating_point() and are_probabilities(self.target)
        return Report(
            copies=len(losses),
            gap=float((chosen - losses.mean(0)).mean()),
            wins=torch.bincount(copy, minlength=len(losses)).tolist(),
            label_entropy=float(entropy(self.target).mean()) if mixed else 0.0,
            replay_error=float((trained.to(dtype) - chosen.to(dtype)).abs().max()),
            gap_kept=None if self.worst.gap_kept is None else float(self.worst.gap_kept),
        )

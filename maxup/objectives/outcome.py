"""What an objective made of a batch, and what a selection did."""

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
    """What a selection did."""

    copies: int
    """m, the copies of every example."""
    gap: float
    """Mean difference between the loss of the winner and the average copy's."""
    wins: list[int]
    """How many examples each copy won."""
    label_entropy: float
    """Mean entropy of the winners' labels in nats; 0 for targets by index."""
    replay_error: float
    """Largest difference between the loss trained on and the loss it was chosen by."""

    @property
    def replay_exact(self) -> bool:
        """Whether what was back-propagated is what was scored, to the last bit."""
        return self.replay_error == 0


@dataclass
class Outcome:
    """What an objective made of a batch.

    Example:
        >>> from maxup import Gaussian, MaxUp
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> outcome = MaxUp(Gaussian(0.1), m=4).run(model, x, y)
        >>> outcome.loss.backward()
        >>> outcome.output.shape, sum(outcome.report.wins), outcome.report.replay_exact
        (torch.Size([8, 3]), 8, True)
    """

    loss: Tensor
    """Mean loss, to back-propagate: with the default loss over all targets that are not -100, else over examples."""
    losses: Tensor
    """Loss of every example trained on, (B,)."""
    output: Any
    """What the model returned for them."""
    target: Any
    """Their targets: mixed, where the perturbation mixes."""
    worst: RunningMax | None = None
    """Where copies compete: the winners' draws, scores and numbers."""

    @property
    def draw(self) -> Any:
        """The draws the examples were made from."""
        return None if self.worst is None else self.worst.draw

    @cached_property
    def report(self) -> Report | None:
        """What the selection did, None where nothing is selected.

        Computed when asked for; on a GPU that waits for the step to finish.
        """
        if self.worst is None:
            return None
        trained = self.losses.detach()
        losses = torch.stack(self.worst.losses or [trained])  # (m, B); m = 1 scores nothing
        copy = self.worst.copy if self.worst.copy is not None else torch.zeros_like(trained, dtype=torch.long)  # (B,)
        chosen = losses.gather(0, copy[None])[0]
        mixed = isinstance(self.target, Tensor) and self.target.is_floating_point() and are_probabilities(self.target)
        return Report(
            copies=len(losses),
            gap=float((chosen - losses.mean(0)).mean()),
            wins=torch.bincount(copy, minlength=len(losses)).tolist(),
            label_entropy=float(entropy(self.target).mean()) if mixed else 0.0,
            replay_error=float((trained.double() - chosen.double()).abs().max()),
        )

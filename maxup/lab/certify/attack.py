"""A sanity check of certificates: attack the smoothed classifier within the certified radius, and see that it holds.

The attack climbs the loss of the soft smoothed classifier, E softmax f(x + noise), with fresh noise at every step. What
it reaches is judged by `predict` at level alpha. An abstention is no break: the certificate is about the smoothed
classifier itself, and `predict` only says that it cannot tell. Of n images that were examined at most alpha * n have
a wrong certificate on average, abstentions counted in n; and of k predictions at most alpha * k are wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from maxup.batch import column
from maxup.isolation import isolated_eval
from maxup.objectives.smoothadv import pgd, soft
from maxup.smoothing.bounds import ABSTAIN
from maxup.smoothing.smooth import Smooth

TOGETHER = 8  # images attacked at once


@dataclass
class Report:
    """What an attack did."""

    attacked: int = 0
    held: int = 0
    """Predicted as certified."""
    abstained: int = 0
    broken: int = 0
    """Predicted as something else."""
    expected: float = 0.0
    """Breaks that alpha allows, at most, if the attack stayed within the certified radii."""

    def __str__(self) -> str:
        """In a sentence."""
        return (
            f"{self.attacked} certified images attacked: {self.held} predicted as certified, {self.abstained} "
            f"abstained, {self.broken} broken (at most {self.expected:.2g} expected within the certified radii)"
        )


def check(
    smooth: Smooth,
    x: Tensor,
    predict: Sequence[int],
    radius: Sequence[float],
    *,
    n: int,
    alpha: float,
    batch_size: int,
    factor: float = 1.0,
    steps: int = 20,
    samples: int = 32,
    seed: int = 0,
) -> Report:
    """Attack every image that has a certificate, at `factor` times its radius.

    Args:
        smooth: The classifier that gave the certificates.
        x: Images, (B, C, H, W).
        predict: Their certified classes; -1 is passed over.
        radius: Their certified radii.
        n: Noisy copies of a prediction.
        alpha: Level of a prediction, that of the certificates.
        batch_size: Noisy copies of a forward pass.
        factor: Above 1, certificates promise nothing, and breaks show that the attack is one.
        steps: Gradient steps.
        samples: Noises of a gradient.
        seed: Of the attack's noise.

    Example:
        >>> line = torch.nn.Linear(2, 2, bias=False)
        >>> _ = line.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        >>> smooth, x = Smooth(line, 2, sigma=0.5), torch.tensor([[0.4, 0.0], [0.8, 0.0]])
        >>> arguments = {"n": 1000, "alpha": 0.001, "batch_size": 100}
        >>> check(smooth, x, [0, 0], [0.38, 0.77], **arguments).broken
        0
        >>> check(smooth, x, [0, 0], [0.38, 0.77], factor=1.5, **arguments).broken
        2
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor={factor!r}: radii are attacked at a finite number above 0 times their length")
    report = Report()
    chosen = [i for i, c in enumerate(predict) if c != ABSTAIN]
    for start in range(0, len(chosen), TOGETHER):
        part = chosen[start : start + TOGETHER]
        classes = torch.tensor([predict[i] for i in part])
        lengths = factor * torch.tensor([radius[i] for i in part])
        reached = attack(smooth, x[part], classes, lengths, steps=steps, samples=samples, seed=seed + start)
        for found, wanted in zip(smooth.predict_many(reached, n, alpha, batch_size), classes.tolist(), strict=True):
            report.attacked += 1
            report.held += found == wanted
            report.abstained += found == ABSTAIN
            report.broken += found not in (wanted, ABSTAIN)
    report.expected = alpha * (len(predict) + report.attacked)
    return report


def attack(
    smooth: Smooth, x: Tensor, y: Tensor, radius: Tensor, *, steps: int = 20, samples: int = 32, seed: int = 0
) -> Tensor:
    """The points that PGD reaches within each image's own radius: (B, C, H, W) -> (B, C, H, W)."""
    model = smooth.base_classifier
    device = smooth.device_of(x)
    generator = Generator(device).manual_seed(seed)
    x, y = x.to(device, torch.float32), y.to(device)
    scale = column(radius.to(x), x).clamp_min(1e-12)  # a unit ball each: (x + scale * delta)

    def scores(moved: Tensor) -> Tensor:
        noise = [smooth.sigma * torch.randn(x.shape, generator=generator, device=device) for _ in range(samples)]
        with torch.autocast(device.type, smooth.dtype, enabled=smooth.dtype != torch.float32):
            return soft(model, noise, x + scale * moved)

    with isolated_eval(model, (x, y)):
        return x + scale * pgd(scores, torch.zeros_like(x), y, radius=1.0, steps=steps)

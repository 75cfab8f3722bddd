"""A sanity check of certificates: attack the smoothed classifier within the certified radius.

The attack maximizes the loss of the soft smoothed classifier, E softmax f(x + noise), with new noise at every step.
`predict` at level alpha then classifies the result. An abstention does not break a certificate: the certificate is
about the smoothed classifier itself, and `predict` abstains when it cannot tell the class. Of n examined images
(abstentions included) at most alpha * n have a wrong certificate on average, and of k predictions at most alpha * k are
wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from maxup.batch import expand_like
from maxup.isolation import isolated_eval
from maxup.objectives.smoothadv import pgd, soft
from maxup.smoothing.bounds import ABSTAIN
from maxup.smoothing.smooth import Smooth

GROUP = 8  # images attacked at once


@dataclass
class Report:
    """The outcome of an attack."""

    attacked: int = 0
    held: int = 0
    """Predicted as the certified class."""
    abstained: int = 0
    broken: int = 0
    """Predicted as another class."""
    expected: float = 0.0
    """Upper bound on the expected number of breaks within the certified radii, from alpha."""

    def __str__(self) -> str:
        """Return a one-line summary."""
        return (
            f"{self.attacked} certified images attacked: {self.held} predicted as certified, {self.abstained} "
            f"abstained, {self.broken} broken (expected within the certified radii: at most {self.expected:.2g})"
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
    """Attack every certified image at `factor` times its radius.

    Args:
        smooth: The classifier that produced the certificates.
        x: Images, (B, C, H, W).
        predict: Certified class per image. Images with -1 (abstention) are skipped.
        radius: Certified radius per image.
        n: Noisy copies per prediction.
        alpha: Failure probability of a prediction, the same as for the certificates.
        batch_size: Noisy copies per forward pass.
        factor: Scale of the radii. Above 1 certificates guarantee nothing, so breaks show that the attack works.
        steps: Gradient steps.
        samples: Noise samples per gradient.
        seed: Seed of the attack's noise.

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
        raise ValueError(f"factor={factor!r}: factor must be a finite number above 0")
    report = Report()
    chosen = [i for i, c in enumerate(predict) if c != ABSTAIN]
    for start in range(0, len(chosen), GROUP):
        part = chosen[start : start + GROUP]
        classes = torch.tensor([predict[i] for i in part])
        lengths = factor * torch.tensor([radius[i] for i in part])
        moved = attack(smooth, x[part], classes, lengths, steps=steps, samples=samples, seed=seed + start)
        for predicted, certified in zip(
            smooth.predict_many(moved, n, alpha, batch_size), classes.tolist(), strict=True
        ):
            report.attacked += 1
            report.held += predicted == certified
            report.abstained += predicted == ABSTAIN
            report.broken += predicted not in (certified, ABSTAIN)
    report.expected = alpha * (len(predict) + report.attacked)
    return report


def attack(
    smooth: Smooth, x: Tensor, y: Tensor, radius: Tensor, *, steps: int = 20, samples: int = 32, seed: int = 0
) -> Tensor:
    """Return the images that PGD finds, each within its radius: (B, C, H, W) -> (B, C, H, W)."""
    model = smooth.base_classifier
    device = smooth.device_of(x)
    generator = Generator(device).manual_seed(seed)
    x, y = x.to(device, torch.float32), y.to(device)
    scale = expand_like(radius.to(x), x).clamp_min(1e-12)  # image = x + scale * delta, delta in the unit ball

    def scores(moved: Tensor) -> Tensor:
        noise = [smooth.sigma * torch.randn(x.shape, generator=generator, device=device) for _ in range(samples)]
        with torch.autocast(device.type, smooth.dtype, enabled=smooth.dtype != torch.float32):
            return soft(model, noise, x + scale * moved)

    with isolated_eval(model, (x, y)):
        return x + scale * pgd(scores, torch.zeros_like(x), y, radius=1.0, steps=steps)

"""A sanity check of certificates: attack the smoothed classifier within the certified radius.

The attack maximizes the loss of the soft smoothed classifier, E softmax f(x + noise), with new noise at every step.
`predict` at level alpha then classifies the result.

An abstention does not break a certificate. The certificate holds for the smoothed classifier; `predict` abstains when
its samples cannot determine the class. On average, at most alpha * n of n certified images (including abstentions) have
a wrong certificate, and at most alpha * k of k predictions are wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import expand_like
from maxup.isolation import isolated_eval
from maxup.lab.certify import tsv
from maxup.lab.certify.run import Settings, find_device, make_smooth
from maxup.lab.certify.target import Target
from maxup.lab.environment import environment
from maxup.lab.storage.atomic_io import read_json, write_json
from maxup.objectives.smoothadv import pgd, soft
from maxup.smoothing.bounds import ABSTAIN
from maxup.smoothing.smooth import Smooth

GROUP = 8  # images attacked at once
SAMPLES = 32  # of the noise, per gradient


@dataclass
class AttackReport:
    """The outcome of an attack."""

    attacked: int = 0
    held: int = 0
    """Predicted as the certified class."""
    abstained: int = 0
    broken: int = 0
    """Predicted as a different class."""
    expected: float = 0.0
    """Upper bound on the expected number of breaks within the certified radii, from alpha."""

    def __str__(self) -> str:
        return (
            f"{self.attacked} certified images attacked: {self.held} predicted as certified, {self.abstained} "
            f"abstained, {self.broken} broken (expected within the certified radii: at most {self.expected:.2g})"
        )


def attack_certified(
    target: Target, settings: Settings, rows: Sequence[tsv.Row], path: Path, factor: float
) -> tuple[AttackReport, Path | None]:
    """Attack certified images at `factor` times their radii, and write a JSON report next to their TSV.

    Args:
        target: The network and its images.
        settings: How the images were certified.
        rows: Their certificates.
        path: The TSV.
        factor: Scale of the radii.

    Returns:
        The report, and its path if the file is unchanged because it already covers more images.
    """
    suffix = f"-{factor:g}" if factor != 1 else ""
    out = path.with_name(f"{path.name.removesuffix('.tsv')}.attack{suffix}.json")
    how: dict[str, Any] = {
        "factor": factor,
        "n": min(settings.n, 10_000),
        "alpha": settings.alpha,
        "seed": settings.seed,
    }
    about = {"model": tsv.read(path)[0]["model"], "sigma": settings.sigma, "images": len(rows)} | how
    smooth, x = make_smooth(target, settings, find_device()), target.pixels([row.idx for row in rows])
    predict, radius = [row.predict for row in rows], [row.radius for row in rows]
    report = check(smooth, x, predict, radius, batch_size=settings.batch_size, **how)
    if _covers_more(out, about):
        return report, out
    write_json(out, about | asdict(report) | {"environment": environment()})
    return report, None


def _covers_more(path: Path, about: dict[str, Any]) -> bool:
    """Whether an earlier report of the same network and settings covers more images."""
    try:
        before = read_json(path)
    except (OSError, ValueError):
        return False
    match before:
        case {"images": int(images)}:
            same = all(before.get(key) == value for key, value in about.items() if key != "images")
            return same and images > about["images"]
    return False


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
    seed: int = 0,
) -> AttackReport:
    """Attack every certified image at `factor` times its radius.

    Args:
        smooth: The classifier that produced the certificates.
        x: Images, (B, C, H, W).
        predict: Certified class per image. Images with -1 (abstention) are skipped.
        radius: Certified radius per image.
        n: Noisy copies per prediction.
        alpha: Failure probability of a prediction, the same as for the certificates.
        batch_size: Noisy copies per forward pass.
        factor: Scale of the radii. Above 1 nothing is guaranteed, and broken predictions show that the attack works.
        steps: Gradient steps.
        seed: Seed of the attack's noise.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor={factor!r}: factor must be a finite number above 0")
    report = AttackReport()
    chosen = [i for i, c in enumerate(predict) if c != ABSTAIN]
    for start in range(0, len(chosen), GROUP):
        part = chosen[start : start + GROUP]
        classes = torch.tensor([predict[i] for i in part])
        lengths = factor * torch.tensor([radius[i] for i in part])
        moved = attack(smooth, x[part], classes, lengths, steps=steps, seed=seed + start)
        for predicted, certified in zip(
            smooth.predict_many(moved, n, alpha, batch_size), classes.tolist(), strict=True
        ):
            report.attacked += 1
            report.held += predicted == certified
            report.abstained += predicted == ABSTAIN
            report.broken += predicted not in (certified, ABSTAIN)
    report.expected = alpha * (len(predict) + report.attacked)
    return report


def attack(smooth: Smooth, x: Tensor, y: Tensor, radius: Tensor, *, steps: int = 20, seed: int = 0) -> Tensor:
    """Return the images that PGD finds, each within its radius: (B, C, H, W) -> (B, C, H, W)."""
    model = smooth.base_classifier
    device = smooth.device_of(x)
    generator = Generator(device).manual_seed(seed)
    x, y = x.to(device, torch.float32), y.to(device)
    scale = expand_like(radius.to(x), x).clamp_min(1e-12)  # image = x + scale * delta, delta in the unit ball

    def scores(moved: Tensor) -> Tensor:
        noise = [smooth.sigma * torch.randn(x.shape, generator=generator, device=device) for _ in range(SAMPLES)]
        with torch.autocast(device.type, smooth.dtype, enabled=smooth.dtype != torch.float32):
            return soft(model, noise, x + scale * moved)

    with isolated_eval(model, (x, y)):
        return x + scale * pgd(scores, torch.zeros_like(x), y, radius=1.0, steps=steps)

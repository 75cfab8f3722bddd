"""Test images for many networks of one process: corrupted once, kept on the device as bytes, and attacked per network.

Kinds, strengths and metrics are those of `maxup eval --robustness`.
"""

from collections.abc import Callable
from statistics import mean
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup import Adversarial
from maxup.lab.robustness.calibration import Calibration
from maxup.lab.robustness.corruptions import CORRUPTIONS

RADIUS, STEPS = 0.25, 10  # of the attack, l2, for pixels in [0, 1]
PART = 2000  # images per forward pass
Network = Callable[[Tensor], Tensor]


class RobustImages:
    """Clean, corrupted and attacked test images.

    Args:
        images: Bytes, (N, C, H, W).
        labels: Classes, (N,).
        normalize: Maps pixels in [0, 1] to the input of the networks.
        device: Device of the networks.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, normalize: Callable[[Tensor], Tensor], device: torch.device | str
    ) -> None:
        indices = torch.arange(len(images))
        kinds = {name: [kind.apply(images / 255, level, indices) for level in kind.levels]
                 for name, kind in CORRUPTIONS.items()}  # fmt: skip
        self.kinds = {name: [_bytes(x).to(device) for x in levels] for name, levels in kinds.items()}
        self.clean, self.labels, self.normalize = images.to(device), labels.to(device), normalize

    def measure(self, call: Network, model: nn.Module) -> dict[str, float]:
        """Return what a network in evaluation mode gets right, in percent, and its calibration on clean images.

        Args:
            call: Returns the logits of a normalized batch, without gradients.
            model: The same network, to attack.
        """
        with torch.no_grad():
            clean = self._metrics(self.clean, lambda x, y: call(self.normalize(x)))
            kinds = {name: [100 * self._metrics(level, lambda x, y: call(self.normalize(x)))["accuracy"]
                            for level in levels] for name, levels in self.kinds.items()}  # fmt: skip
        found = {name: mean(levels) for name, levels in kinds.items()}
        found |= {"corrupted": mean(found.values()), "nll": clean["nll"], "ece": clean["ece"]}
        return found | {"attacked": 100 * self._metrics(self.clean, lambda x, y: self._attack(model, x, y))["accuracy"]}

    def _attack(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the logits of attacked images. The starting points are the same for all networks."""

        def forward(model: Any, pixels: Tensor) -> Tensor:
            logits: Tensor = model(self.normalize(pixels))
            return logits

        pgd = Adversarial(RADIUS, steps=STEPS, clip=(0, 1), norm="running", forward=forward)
        start = pgd.perturbation.draw((x, y), Generator(x.device).manual_seed(0))
        moved, _ = pgd.attack(model, (x, y), start)
        with torch.no_grad():
            return forward(model, moved)

    def _metrics(self, images: Tensor, logits: Callable[[Tensor, Tensor], Tensor]) -> dict[str, float]:
        found = Calibration(images.device)
        for x, y in zip(images.split(PART), self.labels.split(PART), strict=True):
            found.update(logits(x / 255, y), y)
        return found.metrics()


def _bytes(x: Tensor) -> Tensor:
    return (x * 255).round().to(torch.uint8)

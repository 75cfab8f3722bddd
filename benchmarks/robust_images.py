"""Test images for many networks of one process: corrupted once, kept on the device as bytes, and attacked per network.

Kinds, strengths and metrics are those of `maxup eval --robustness`, except that corrupted images are rounded to bytes.
"""

from collections.abc import Callable
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from maxup import Adversarial
from maxup.lab.robustness.calibration import Calibration
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.robustness.measure import STEPS, starting_points

RADIUS = 0.25  # of the attack, l2, for pixels in [0, 1]
BATCH_SIZE = 2000
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
        self.corrupted = {
            name: [_bytes(kind.apply(images / 255, level, indices)).to(device) for level in kind.levels]
            for name, kind in CORRUPTIONS.items()
        }
        self.clean, self.labels, self.normalize = images.to(device), labels.to(device), normalize
        self.attack = Adversarial(RADIUS, steps=STEPS, clip=(0, 1), norm="running", forward=self._forward)
        (self.starts,) = starting_points(self.attack, images / 255, labels, indices)  # the same for all networks
        self.starts = self.starts.to(device)

    def measure(self, call: Network, model: nn.Module) -> dict[str, float]:
        """Return what a network in evaluation mode gets right, in percent, and its calibration on clean images.

        Args:
            call: Returns the logits of a normalized batch, without gradients.
            model: The same network, to attack.
        """
        clean = self._metrics(call, self.clean / 255)
        found = {
            name: mean(100 * self._metrics(call, images / 255)["accuracy"] for images in levels)
            for name, levels in self.corrupted.items()
        }
        attacked = self._metrics(call, self.attacked(model))
        return found | {
            "corrupted": mean(found.values()),
            "attacked": 100 * attacked["accuracy"],
            "nll": clean["nll"],
            "ece": clean["ece"],
        }

    def attacked(self, model: nn.Module) -> Tensor:
        """Return the images that an attack on a network finds: pixels in [0, 1]."""
        parts = zip(*(part.split(BATCH_SIZE) for part in (self.clean, self.labels, self.starts)), strict=True)
        return torch.cat([self.attack.attack(model, (x / 255, y), [start])[0] for x, y, start in parts])

    def _forward(self, model: Any, pixels: Tensor) -> Tensor:
        logits: Tensor = model(self.normalize(pixels))
        return logits

    @torch.no_grad()
    def _metrics(self, call: Network, pixels: Tensor) -> dict[str, float]:
        found = Calibration(pixels.device)
        for x, y in zip(pixels.split(BATCH_SIZE), self.labels.split(BATCH_SIZE), strict=True):
            found.update(call(self.normalize(x)), y)
        return found.metrics()


def _bytes(x: Tensor) -> Tensor:
    return (x * 255).round().to(torch.uint8)

"""The rows of the speed run: how copies are made and selected, in which steps, and for how many epochs."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup import Average, Compose, CropFlip, CutMix, Cutout, Gaussian, MaxUp

SMOOTHING = 0.2
EQUAL_TIME = "m1xR"
device = "cuda" if torch.cuda.is_available() else "cpu"


def smoothed(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with label smoothing per example, for class ids and for probabilities."""
    return F.cross_entropy(output.float(), target, label_smoothing=SMOOTHING, reduction="none")


class Proxy(nn.Module):
    """A network of a few percent of the cost that scores copies for the large one."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, width, 2), (width, 2 * width, 1), (2 * width, 4 * width, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * width * 16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


PERTURBATIONS: dict[str, Callable[[], Any]] = {
    "cutout": lambda: Cutout(12),
    "cutmix": lambda: CutMix(num_classes=10),
    "gaussian": lambda: Gaussian(0.25),
    "translate": lambda: Compose(CropFlip(padding=2), Cutout(12)),
}


def at_24_pixels(model: nn.Module, x: Tensor) -> Tensor:
    """Call a network with smaller images."""
    output: Tensor = model(F.interpolate(x, (24, 24), mode="bilinear", antialias=True))
    return output


ONE_PASS: dict[str, Any] = {"norm": "running", "chunk_size": 64}  # all copies at once
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "m": MaxUp,
    "fast": partial(MaxUp, fast=True),
    "run": partial(MaxUp, **ONE_PASS, compile=device == "cuda"),
    "easy": partial(MaxUp, **ONE_PASS, compile=device == "cuda", score="easiest"),
    "low": partial(MaxUp, forward=at_24_pixels),
    "proxy": partial(MaxUp, **ONE_PASS),
    "avg": Average,
}


@dataclass(frozen=True)
class Row:
    """A row of the table: how copies are selected, in which steps, and for how many times the epochs."""

    kind: str
    m: int
    part: str | None
    percent: int
    factor: float

    @classmethod
    def parse(cls, name: str) -> "Row":
        found = re.fullmatch(rf"({'|'.join(OBJECTIVES)})(\d+)(?:(first|last)(\d+))?(?:x(\d+(?:\.\d+)?))?", name)
        if found is None or not int(found[2]) or (found[5] is not None and not float(found[5])):
            raise SystemExit(
                f"row {name!r} is not known; use {', '.join(OBJECTIVES)} and a number, such as m4, run4last25 or m1x2"
            )
        kind, copies, part, percent, factor = found.groups()
        return cls(kind, int(copies), part, int(percent or 100), float(factor or 1))

    def copies(self, step: int, steps: int) -> int:
        """Return m at a step."""
        share = 100 * step / steps
        inside = share < self.percent if self.part == "first" else share >= 100 - self.percent
        return self.m if inside else 1


def check_equal_time(names: Sequence[str], runs: int) -> None:
    """Raise if the row m1xR cannot be set by the time of another row."""
    if EQUAL_TIME not in names:
        return
    if "m1" not in names or names[0] == EQUAL_TIME or names.count(EQUAL_TIME) > 1 or runs < 2:
        raise SystemExit(
            f"{EQUAL_TIME} needs the row m1, a row before it whose time it takes, and --runs of 2 or more; give it once"
        )


def equal_time(rows: Mapping[str, list[dict[str, Any]]], other: str) -> str:
    """Return the name of the row with m = 1 that takes as long as another one, by the median of seeds 0 and 1.

    Example:
        >>> m1 = [{"seed": 0, "seconds": 1.0}, {"seed": 1, "seconds": 1.0}, {"seed": 2, "seconds": 9.0}]
        >>> fast4 = [{"seed": 0, "seconds": 1.9}, {"seed": 1, "seconds": 1.86}]
        >>> equal_time({"m1": m1, "fast4": fast4}, "fast4")
        'm1x1.9'
    """
    seconds = [statistics.median(run["seconds"] for run in rows[name] if run["seed"] < 2) for name in (other, "m1")]
    return f"m1x{round(20 * seconds[0] / seconds[1]) / 20:g}"

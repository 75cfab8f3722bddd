"""Randomized smoothing (Cohen, Rosenfeld and Kolter, 2019): a classifier whose answers come with a radius.

g(x) = the class that f answers most often to x + N(0, sigma^2 I). If f answers it with probability above p, then g does
not change within the l2 radius sigma * Phi^-1(p). `certify` estimates p from samples, so that its claim is wrong with
probability alpha at most, for every image.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from maxup.smoothing import sampling
from maxup.smoothing.bounds import ABSTAIN, predicted
from maxup.smoothing.counts import NoiseCounter, Request
from maxup.validate import check_positive_int

TOGETHER = 16  # images that share batches
SELECT, ESTIMATE, PREDICT = "select", "estimate", "predict"  # streams of noise, independent of each other
Groups = Iterator[tuple[Tensor, list[int], NoiseCounter]]  # images that share batches, their numbers, and who counts
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Certificate:
    """What is certain of one image, with probability 1 - alpha."""

    predict: int
    """The class, or -1 for an abstention."""
    radius: float
    """Within which the class cannot change."""
    samples: int
    """Noisy copies that the bound is made of."""
    seconds: float
    """Its share of the time."""


class Smooth:
    """A smoothed classifier. Its noise is in the units of x: give pixels, and normalize inside the model.

    Args:
        base_classifier: Takes images (B, C, H, W), or rows (B, D), and returns logits (B, num_classes). It is called in
            evaluation mode.
        num_classes: How many there are.
        sigma: Standard deviation of the noise.
        dtype: Precision in which the classifier runs, by autocast: a certificate in bfloat16 is one of the bfloat16
            classifier, and `predict` must then run in it too.
        seed: Decides all noise.
        capture: On a GPU, replay the classifier as a CUDA graph.

    Example:
        >>> line = nn.Linear(2, 2, bias=False)
        >>> _ = line.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))  # the boundary is x[0] = 0
        >>> smooth = Smooth(line, num_classes=2, sigma=0.5)
        >>> label, radius = smooth.certify(torch.tensor([0.4, 3.0]), n0=100, n=10_000, alpha=0.001, batch_size=1000)
        >>> label, 0.37 < radius < 0.4
        (0, True)
        >>> smooth.predict(torch.tensor([0.0, 3.0]), n=100, alpha=0.001, batch_size=100)  # on the boundary: it abstains
        -1
    """

    ABSTAIN = ABSTAIN

    def __init__(
        self,
        base_classifier: Any,
        num_classes: int,
        sigma: float,
        *,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        capture: bool = False,
    ) -> None:
        if not callable(base_classifier):
            raise TypeError(f"a {type(base_classifier).__name__} is no classifier: it must be callable on images")
        if check_positive_int("num_classes", num_classes) < 2:
            raise ValueError("num_classes=1: there must be 2 classes or more")
        if not isinstance(sigma, Real) or isinstance(sigma, bool) or not 0 < sigma < math.inf:
            raise ValueError(f"sigma={sigma!r}: the noise's standard deviation must be a finite number above 0")
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype={dtype}: the classifier runs in torch.float32, torch.bfloat16 or torch.float16")
        self.base_classifier: Any = base_classifier
        self.num_classes: int = num_classes
        self.sigma: float = float(sigma)
        self.dtype: torch.dtype = dtype
        self.seed: int = seed
        self.capture: bool = capture
        self.seen: int = 0  # images whose number nobody gave
        self._counter: tuple[Any, NoiseCounter] | None = None

    def certify(self, x: Tensor, n0: int, n: int, alpha: float, batch_size: int) -> tuple[int, float]:
        """The class of one image and the radius within which it cannot change, or (-1, 0.0) for an abstention.

        Args:
            x: The image, (C, H, W).
            n0: Noisy copies that choose the class.
            n: Noisy copies that estimate its probability.
            alpha: Probability with which the claim may be wrong.
            batch_size: Noisy copies of a forward pass.
        """
        found = next(self.certify_many(_one(x, "certify_many"), n0, n, alpha, batch_size))
        return found.predict, found.radius

    def predict(self, x: Tensor, n: int, alpha: float, batch_size: int) -> int:
        """The class of one image, which is that of the smoothed classifier with probability 1 - alpha, or -1.

        Args:
            x: The image, (C, H, W).
            n: Noisy copies.
            alpha: Probability with which the answer may be another than the smoothed classifier's.
            batch_size: Noisy copies of a forward pass.
        """
        return next(self.predict_many(_one(x, "predict_many"), n, alpha, batch_size))

    def certify_many(
        self,
        x: Tensor,
        n0: int,
        n: int,
        alpha: float,
        batch_size: int,
        *,
        indices: Sequence[int] | None = None,
        adaptive: bool = False,
        radii: Sequence[float] | None = None,
    ) -> Iterator[Certificate]:
        """Certificates of images (B, C, H, W), in their order, as they are found; images share batches.

        Args:
            x: The images.
            n0: Noisy copies that choose the class of each.
            n: Noisy copies that estimate its probability, at most.
            alpha: Probability with which each claim may be wrong.
            batch_size: Noisy copies of a forward pass.
            indices: Their numbers, which decide their noise; default, the next ones of this object.
            adaptive: Look early, with alpha spent over the looks, and stop where an abstention is settled or, of
                `radii`, every one is reached or out of reach.
            radii: The radii of interest; default the largest there is. A radius is then only as long as they needed.
        """
        check_sampling(n0=n0, n=n, alpha=alpha)
        if radii is not None and not adaptive:
            raise ValueError("radii says when to stop early; it needs adaptive=True")
        check_radii(radii)
        looks = sampling.plan(n, alpha, early=adaptive)
        return self._certify(self._groups(x, indices, batch_size), n0, looks, radii)

    def _certify(
        self, groups: Groups, n0: int, looks: Sequence[sampling.Look], radii: Sequence[float] | None
    ) -> Iterator[Certificate]:
        for images, numbers, counter in groups:
            begun, rows = time.monotonic(), range(len(images))
            counts = counter.count(images, [Request(r, numbers[r], SELECT, 0, n0) for r in rows])
            top = counts.argmax(1).tolist()
            evidence = [sampling.Evidence(looks, self.sigma, radii) for _ in rows]
            right = [0 for _ in rows]
            while requests := [
                Request(r, numbers[r], ESTIMATE, e.n, e.n + e.wanted) for r, e in enumerate(evidence) if not e.settled
            ]:
                counts = counter.count(images, requests)
                for r in (request.row for request in requests):
                    right[r] += int(counts[r, top[r]])
                    evidence[r].update(right[r])
            each = (time.monotonic() - begun) / sum(n0 + e.n for e in evidence)
            for r, e in enumerate(evidence):
                sure = e.p >= 0.5
                yield Certificate(top[r] if sure else ABSTAIN, e.radius if sure else 0.0, e.n, each * (n0 + e.n))

    def predict_many(
        self, x: Tensor, n: int, alpha: float, batch_size: int, *, indices: Sequence[int] | None = None
    ) -> Iterator[int]:
        """Predictions for images (B, C, H, W), in their order; the arguments are those of `predict`."""
        check_sampling(n=n, alpha=alpha)
        return (
            predicted(row, alpha)
            for images, numbers, counter in self._groups(x, indices, batch_size)
            for row in counter.count(images, [Request(r, i, PREDICT, 0, n) for r, i in enumerate(numbers)]).tolist()
        )

    def counts(self, x: Tensor, n: int, batch_size: int, *, index: int = 0) -> list[int]:
        """How often each class is the answer to n noisy copies of one image, those that `predict` sees."""
        ((images, numbers, counter),) = self._groups(x[None], [index], batch_size)
        found: list[int] = counter.count(images, [Request(0, numbers[0], PREDICT, 0, n)])[0].tolist()
        return found

    def _groups(self, x: Tensor, indices: Sequence[int] | None, batch_size: int) -> Groups:
        """Images that share batches, with their numbers."""
        check_positive_int("batch_size", batch_size)
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"x is {came}; give a tensor of floating images, such as bytes / 255")
        if indices is None:
            indices = range(self.seen, self.seen + len(x))
            self.seen += len(x)
        if len(indices) != len(x):
            raise ValueError(f"{len(x)} images have {len(indices)} indices; give one for each")
        counter = self._make_counter(tuple(x.shape[1:]), self.device_of(x), batch_size)
        parts = [slice(start, start + TOGETHER) for start in range(0, len(x), TOGETHER)]
        return ((x[p].to(counter.x.device, torch.float32), [int(i) for i in indices[p]], counter) for p in parts)

    def _make_counter(self, shape: tuple[int, ...], device: torch.device, batch_size: int) -> NoiseCounter:
        key = shape, device, batch_size
        if self._counter is None or self._counter[0] != key:
            counter = NoiseCounter(
                self.base_classifier, self.num_classes, self.sigma, shape=shape, device=device, batch_size=batch_size,
                rows=TOGETHER, dtype=self.dtype, seed=self.seed, capture=self.capture,
            )  # fmt: skip
            self._counter = key, counter
        return self._counter[1]

    def device_of(self, x: Tensor) -> torch.device:
        """Where the classifier is, or x where it has no weights."""
        model = self.base_classifier
        weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        return x.device if weight is None else weight.device


def _one(x: Tensor, many: str) -> Tensor:
    """One image as a batch; what is no tensor is refused as batches are."""
    if isinstance(x, Tensor) and x.ndim > 3:
        raise ValueError(f"x has shape {tuple(x.shape)}; give one image (C, H, W), or several to {many}")
    return x[None] if isinstance(x, Tensor) else x


def check_radii(radii: Sequence[float] | None) -> None:
    """Lengths, one or more; None asks for the largest."""
    if radii is None:
        return
    numbers = isinstance(radii, Collection) and all(isinstance(r, Real) and 0 <= r < math.inf for r in radii)
    if not numbers or not len(radii):
        raise ValueError(f"radii={radii!r}: give a list of one or more finite numbers, 0 or more")


def check_sampling(*, n: int, alpha: float, n0: int | None = None) -> None:
    """Counts and a level that make sense."""
    check_positive_int("n", n)
    if n0 is not None and n < check_positive_int("n0", n0):
        raise ValueError(f"n={n} is below n0={n0}: n0 copies choose the class, n (such as 100,000) estimate its share")
    if not isinstance(alpha, Real) or not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha!r}: the probability of a wrong claim must be above 0 and below 1")

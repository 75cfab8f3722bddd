"""Randomized smoothing (Cohen, Rosenfeld and Kolter, 2019): a classifier whose predictions have a certified radius.

g(x) is the class that f predicts most often for x + N(0, sigma^2 I). If f predicts it with probability above p, then
g(x) does not change within the l2 radius sigma * Phi^-1(p). `certify` bounds p from samples, so for each image the
certificate is wrong with probability at most alpha.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import a_type
from maxup.smoothing import sampling
from maxup.smoothing.bounds import ABSTAIN, predicted
from maxup.smoothing.counts import NoiseCounter, Request
from maxup.validate import check_positive_int

TOGETHER = 16  # number of images that share batches
SELECT, ESTIMATE, PREDICT = "select", "estimate", "predict"  # independent streams of noise
Groups = Iterator[tuple[Tensor, list[int], NoiseCounter]]  # images that share batches, their indices, and the counter
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Certificate:
    """The certificate of one image, which is correct with probability at least 1 - alpha."""

    predict: int
    """Predicted class, or -1 for an abstention."""
    radius: float
    """l2 radius within which the prediction cannot change."""
    samples: int
    """Number of noisy copies behind the bound."""
    seconds: float
    """Time for this image."""


class Smooth:
    """A smoothed classifier. The noise is in the units of x: pass pixels, and normalize inside the model.

    Args:
        base_classifier: Maps images (B, C, H, W), or rows (B, D), to logits (B, num_classes). Runs in evaluation mode.
        num_classes: Number of classes.
        sigma: Standard deviation of the noise.
        dtype: Autocast precision of the classifier. A certificate in bfloat16 holds for the bfloat16 classifier, so use
            the same `dtype` for `predict`.
        seed: Seed of all noise.
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
            raise TypeError(f"{a_type(base_classifier)} is not a classifier; pass a module or function of images")
        if check_positive_int("num_classes", num_classes) < 2:
            raise ValueError("num_classes=1: num_classes must be 2 or more")
        if not isinstance(sigma, Real) or isinstance(sigma, bool) or not 0 < sigma < math.inf:
            raise ValueError(f"sigma={sigma!r}: sigma must be a finite number above 0")
        if dtype not in DTYPES.values():
            raise ValueError(f"dtype={dtype}: dtype must be torch.float32, torch.bfloat16 or torch.float16")
        self.base_classifier: Any = base_classifier
        self.num_classes: int = num_classes
        self.sigma: float = float(sigma)
        self.dtype: torch.dtype = dtype
        self.seed: int = seed
        self.capture: bool = capture
        self.seen: int = 0  # images without an index so far
        self._counter: tuple[Any, NoiseCounter] | None = None

    def certify(self, x: Tensor, n0: int, n: int, alpha: float, batch_size: int) -> tuple[int, float]:
        """Return the class of one image and its certified radius, or (-1, 0.0) for an abstention.

        Args:
            x: The image, (C, H, W).
            n0: Number of noisy copies that select the class.
            n: Number of noisy copies that bound its probability.
            alpha: Largest probability that the certificate is wrong.
            batch_size: Number of noisy copies per forward pass.
        """
        certificate = next(self.certify_many(_as_batch(x, "certify_many"), n0, n, alpha, batch_size))
        return certificate.predict, certificate.radius

    def predict(self, x: Tensor, n: int, alpha: float, batch_size: int) -> int:
        """Return the smoothed classifier's class of one image, or -1 for an abstention.

        Args:
            x: The image, (C, H, W).
            n: Number of noisy copies.
            alpha: Largest probability of returning a class other than the smoothed classifier's.
            batch_size: Number of noisy copies per forward pass.
        """
        return next(self.predict_many(_as_batch(x, "predict_many"), n, alpha, batch_size))

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
        """Yield the certificates of images (B, C, H, W) in order. Images share batches.

        Args:
            x: The images.
            n0: Number of noisy copies that select the class of an image.
            n: Largest number of noisy copies that bound its probability.
            alpha: Largest probability, per image, that the certificate is wrong.
            batch_size: Number of noisy copies per forward pass.
            indices: Indices of the images, which determine their noise. Default: continue from the last call.
            adaptive: Stop early once the image is certain to be an abstention, or once each of `radii` is reached or
                out of reach. The bounds of the interim tests share alpha.
            radii: Radii of interest for `adaptive`. Default: the largest possible radius. With `radii`, sampling stops
                once they are decided, so the certified radius may be smaller than with all n copies.
        """
        check_sampling(n0=n0, n=n, alpha=alpha)
        if radii is not None and not adaptive:
            raise ValueError("radii= determines when to stop early, so it needs adaptive=True")
        check_radii(radii)
        looks = sampling.plan(n, alpha, early=adaptive)
        return self._certify(self._groups(x, indices, batch_size), n0, looks, radii)

    def _certify(
        self, groups: Groups, n0: int, looks: Sequence[sampling.Look], radii: Sequence[float] | None
    ) -> Iterator[Certificate]:
        for images, indices, counter in groups:
            start, rows = time.monotonic(), range(len(images))
            counts = counter.count(images, [Request(r, indices[r], SELECT, 0, n0) for r in rows])
            top = counts.argmax(1).tolist()
            evidence = [sampling.Evidence(looks, self.sigma, radii) for _ in rows]
            hits = [0 for _ in rows]
            while requests := [
                Request(r, indices[r], ESTIMATE, e.n, e.n + e.needed) for r, e in enumerate(evidence) if not e.decided
            ]:
                counts = counter.count(images, requests)
                for r in (request.row for request in requests):
                    hits[r] += int(counts[r, top[r]])
                    evidence[r].update(hits[r])
            per_copy = (time.monotonic() - start) / sum(n0 + e.n for e in evidence)  # seconds
            for r, e in enumerate(evidence):
                sure, seconds = e.p >= 0.5, per_copy * (n0 + e.n)
                yield Certificate(top[r] if sure else ABSTAIN, e.radius if sure else 0.0, e.n, seconds)

    def predict_many(
        self, x: Tensor, n: int, alpha: float, batch_size: int, *, indices: Sequence[int] | None = None
    ) -> Iterator[int]:
        """Yield the predictions for images (B, C, H, W) in order. The arguments are those of `predict`."""
        check_sampling(n=n, alpha=alpha)
        return (
            predicted(row, alpha)
            for images, numbers, counter in self._groups(x, indices, batch_size)
            for row in counter.count(images, [Request(r, i, PREDICT, 0, n) for r, i in enumerate(numbers)]).tolist()
        )

    def counts(self, x: Tensor, n: int, batch_size: int, *, index: int = 0) -> list[int]:
        """Return how often each class is predicted for n noisy copies of one image, the same copies as in `predict`."""
        ((images, numbers, counter),) = self._groups(x[None], [index], batch_size)
        counts: list[int] = counter.count(images, [Request(0, numbers[0], PREDICT, 0, n)])[0].tolist()
        return counts

    def _groups(self, x: Tensor, indices: Sequence[int] | None, batch_size: int) -> Groups:
        """Split images into groups that share batches."""
        check_positive_int("batch_size", batch_size)
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else a_type(x)
            raise TypeError(f"x is {what}; pass a tensor of floating-point images, as in x.float() / 255")
        if indices is None:
            indices = range(self.seen, self.seen + len(x))
            self.seen += len(x)
        if len(indices) != len(x):
            raise ValueError(f"got {len(indices)} indices for {len(x)} images; pass one per image")
        counter = self._make_counter(tuple(x.shape[1:]), self.device_of(x), batch_size)
        parts = [slice(start, start + TOGETHER) for start in range(0, len(x), TOGETHER)]
        return ((x[p].to(counter.x.device, torch.float32), [int(i) for i in indices[p]], counter) for p in parts)

    def _make_counter(self, shape: tuple[int, ...], device: torch.device, batch_size: int) -> NoiseCounter:
        settings = self.num_classes, self.sigma, self.dtype, self.seed, self.capture  # they may change between calls
        key = id(self.base_classifier), settings, shape, device, batch_size
        if self._counter is None or self._counter[0] != key:
            counter = NoiseCounter(
                self.base_classifier, self.num_classes, self.sigma, shape=shape, device=device, batch_size=batch_size,
                rows=TOGETHER, dtype=self.dtype, seed=self.seed, capture=self.capture,
            )  # fmt: skip
            self._counter = key, counter  # the counter keeps the classifier alive, so that its id stays unique
        return self._counter[1]

    def device_of(self, x: Tensor) -> torch.device:
        """Return the device of the classifier, or of x if the classifier has no parameters."""
        model = self.base_classifier
        weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        return x.device if weight is None else weight.device


def _as_batch(x: Tensor, many: str) -> Tensor:
    """Return one image as a batch of one. Values that are not tensors are passed to `_groups`, which raises."""
    if isinstance(x, Tensor) and x.ndim > 3:
        raise ValueError(f"x has shape {tuple(x.shape)}; pass one image (C, H, W), or use {many} for several")
    return x[None] if isinstance(x, Tensor) else x


def check_radii(radii: Sequence[float] | None) -> None:
    """Check radii of interest; None means the largest."""
    if radii is None:
        return
    numbers = isinstance(radii, Collection) and all(isinstance(r, Real) and 0 <= r < math.inf for r in radii)
    if not numbers or not len(radii):
        raise ValueError(f"radii={radii!r}: radii must be a non-empty list of finite numbers, 0 or more")


def check_sampling(*, n: int, alpha: float, n0: int | None = None) -> None:
    """Check the numbers of copies and alpha."""
    check_positive_int("n", n)
    if n0 is not None and n < check_positive_int("n0", n0):
        raise ValueError(
            f"n={n} is below n0={n0}; n0 copies select the class, and n copies, such as 100,000, bound its probability"
        )
    if not isinstance(alpha, Real) or not 1e-100 <= alpha <= 0.999:
        raise ValueError(
            f"alpha={alpha!r}: alpha, the probability of a wrong certificate, must be from 1e-100 to 0.999"
        )

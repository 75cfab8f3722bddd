"""Counting the classes of noisy copies, on the device, in batches of one size that several images share.

The noise of an image is a stream of its own: block b of it is drawn by a generator whose seed is made of the seed, the
image's number and the stream, plus b. So a count does not depend on the batch size, on the images counted beside this
one, or on which process does it, but for rounding in the network. (A CPU and a GPU draw different numbers.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.cuda.graph import record
from maxup.isolation import eval_mode
from maxup.rng import hash_seed

BLOCK = 100  # noisy copies drawn at once


@dataclass(frozen=True)
class Request:
    """Noisy copies of one image: the numbers start ... stop - 1 of a stream."""

    row: int
    """Which of the images given."""
    index: int
    """The image's number, which decides its noise."""
    stream: str
    start: int
    stop: int


class NoiseCounter:
    """A classifier that counts what it answers to noisy copies.

    Args:
        model: Takes images (B, C, H, W), returns logits (B, num_classes).
        num_classes: How many there are.
        sigma: Standard deviation of the noise.
        shape: Of an image.
        device: Where the model is.
        batch_size: Copies of a forward pass; every pass has as many.
        rows: Images counted at once, at most.
        dtype: Precision of the forward pass, by autocast.
        seed: Decides all noise.
        capture: Replay the forward pass as a CUDA graph.

    Example:
        >>> from torch import nn
        >>> counter = NoiseCounter(nn.Flatten(), 2, 0.5, shape=(2, 1, 1), device=torch.device("cpu"), batch_size=64, rows=1)
        >>> counter.count(torch.tensor([9.0, 0.0]).view(1, 2, 1, 1), [Request(0, 0, "a", 0, 150)])
        tensor([[150,   0]])
    """

    def __init__(
        self,
        model: Any,
        num_classes: int,
        sigma: float,
        *,
        shape: Sequence[int],
        device: torch.device,
        batch_size: int,
        rows: int,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        capture: bool = False,
    ) -> None:
        self.model, self.num_classes, self.sigma = model, num_classes, sigma
        self.dtype, self.seed, self.capture = dtype, seed, capture and device.type == "cuda"
        self.generator = Generator(device)
        self.noise = torch.empty(BLOCK, *shape, device=device)
        self.x = torch.zeros(batch_size, *shape, device=device)  # what the forward pass sees
        if device.type == "cuda" and len(shape) == 3:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.rest = rows  # the row that counts what fills up a batch
        self.owner = torch.full((batch_size,), self.rest, device=device)  # whose copy it is, (batch_size,)
        self.ones = torch.ones_like(self.owner)
        self.counts = torch.zeros(rows + 1, num_classes, dtype=torch.long, device=device)
        self.broken = torch.zeros(rows + 1, dtype=torch.long, device=device)  # answers that are not finite
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def count(self, images: Tensor, requests: Sequence[Request]) -> Tensor:
        """How often each class was the answer: images (G, C, H, W) -> counts (G, num_classes), on the CPU."""
        self.counts.zero_()
        self.broken.zero_()
        with eval_mode(self.model):
            at = 0
            for row, noise in self._noises(requests):
                while len(noise):
                    part = slice(at, min(at + len(noise), len(self.x)))
                    size = part.stop - at
                    torch.add(images[row], noise[:size], alpha=self.sigma, out=self.x[part])  # x + N(0, sigma^2 I)
                    self.owner[part] = row
                    at, noise = part.stop, noise[size:]
                    if at == len(self.x):
                        self._count_batch()
                        at = 0
            if at:
                self.owner[at:] = self.rest
                self._count_batch()
        all_broken = self.broken.tolist()
        for request in requests:
            if broken := all_broken[request.row]:
                wider = "" if self.dtype == torch.float32 else ", or use dtype float32"
                raise ValueError(
                    f"the model answered {broken} noisy copies of image {request.index} with logits that are not "
                    f"finite; a certificate of it would mean nothing: look at its weights{wider}"
                )
        return self.counts[: len(images)].to("cpu", copy=True)

    def block(self, index: int, stream: str, number: int) -> Tensor:
        """Block `number` of an image's noise in units of sigma, (BLOCK, C, H, W); the next call overwrites it."""
        # Neighboring blocks differ in the last 32 bits, which are all that a CPU's generator uses.
        self.generator.manual_seed((hash_seed("noise", self.seed, index, stream) + number) % 2**56)
        return self.noise.normal_(generator=self.generator)

    def _noises(self, requests: Sequence[Request]) -> Iterator[tuple[int, Tensor]]:
        for r in requests:
            for number in range(r.start // BLOCK, -(-r.stop // BLOCK)):
                first = number * BLOCK
                whole = self.block(r.index, r.stream, number)
                yield r.row, whole[max(r.start - first, 0) : min(r.stop - first, BLOCK)]

    def _count_batch(self) -> None:
        if self.capture and self.graph is None:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._tally()

    def _tally(self) -> None:
        """What happens on the device: a forward pass, and its answers into the counts."""
        with torch.autocast(self.x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(self.x)
        wanted = (len(self.x), self.num_classes)
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            came = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise ValueError(f"the model returned {came} for {len(self.x)} images; it must return logits {wanted}")
        self.counts.view(-1).index_add_(0, self.owner * self.num_classes + logits.argmax(1), self.ones)
        self.broken.index_add_(0, self.owner, (~logits.isfinite()).any(1).long())

    def _capture(self) -> None:
        kept = self.owner.clone()
        self.owner.fill_(self.rest)  # what is counted while warming up is not an image's
        self.graph = record(self._tally)
        self.owner.copy_(kept)

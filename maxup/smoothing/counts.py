"""Counts of the predicted classes of noisy copies, computed on the device in batches that several images share.

Each image has its own stream of noise: block b is drawn by a generator that is seeded with a hash of the seed, the
image's index and the stream, plus b. Counts therefore do not depend on the batch size, on the other images in the batch
or on the process, except for rounding in the network. A CPU and a GPU draw different noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.cuda.graph import capture_graph
from maxup.errors import a_type
from maxup.isolation import eval_mode
from maxup.rng import hash_seed

BLOCK = 100  # noisy copies per call of the generator


@dataclass(frozen=True)
class Request:
    """A request for copies start ... stop - 1 of a stream of noisy copies of one image."""

    row: int
    """Position of the image among the given images."""
    index: int
    """Index of the image in the data set, which determines its noise."""
    stream: str
    start: int
    stop: int


class NoiseCounter:
    """Count the classes that a model predicts for noisy copies of images.

    Args:
        model: Maps images (B, C, H, W) to logits (B, num_classes).
        num_classes: Number of classes.
        sigma: Standard deviation of the noise.
        shape: Shape of one image.
        device: Device of the model.
        batch_size: Number of copies per forward pass. The last pass is padded.
        rows: Largest number of images per call of `count`.
        dtype: Autocast precision of the forward pass.
        seed: Seed of all noise.
        capture: Whether to replay the forward pass as a CUDA graph.
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
        self.x = torch.zeros(batch_size, *shape, device=device)  # input of the forward pass
        if device.type == "cuda" and len(shape) == 3:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.padding_row = rows  # counts the copies that pad a batch
        self.row_of = torch.full((batch_size,), self.padding_row, device=device)  # row of each copy, (batch_size,)
        self.ones = torch.ones_like(self.row_of)
        self.counts = torch.zeros(rows + 1, num_classes, dtype=torch.long, device=device)
        self.not_finite = torch.zeros(rows + 1, dtype=torch.long, device=device)  # copies with non-finite logits
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def count(self, images: Tensor, requests: Sequence[Request]) -> Tensor:
        """Return how often each class was predicted: images (G, C, H, W) -> counts (G, num_classes), on the CPU."""
        self.counts.zero_()
        self.not_finite.zero_()
        with eval_mode(self.model):
            filled = 0
            for row, noise in self._noise(requests):
                while len(noise):
                    part = slice(filled, min(filled + len(noise), len(self.x)))
                    size = part.stop - filled
                    torch.add(images[row], noise[:size], alpha=self.sigma, out=self.x[part])  # x + N(0, sigma^2 I)
                    self.row_of[part] = row
                    filled, noise = part.stop, noise[size:]
                    if filled == len(self.x):
                        self._count_batch()
                        filled = 0
            if filled:
                self.row_of[filled:] = self.padding_row
                self._count_batch()
        not_finite = self.not_finite.tolist()
        for request in requests:
            if number := not_finite[request.row]:
                wider = "" if self.dtype == torch.float32 else ", or use dtype float32"
                raise ValueError(
                    f"the model returned logits that are not finite for {number} noisy copies of image "
                    f"{request.index}, so the image cannot be certified; check the model's weights{wider}"
                )
        return self.counts[: len(images)].to("cpu", copy=True)

    def block(self, index: int, stream: str, number: int) -> Tensor:
        """Return block `number` of an image's noise, (BLOCK, C, H, W), with sigma = 1. The next call overwrites it."""
        # The CPU generator uses only the low 32 bits, so blocks must differ there.
        self.generator.manual_seed((hash_seed("noise", self.seed, index, stream) + number) % 2**56)
        return self.noise.normal_(generator=self.generator)

    def _noise(self, requests: Sequence[Request]) -> Iterator[tuple[int, Tensor]]:
        for r in requests:
            for number in range(r.start // BLOCK, -(-r.stop // BLOCK)):
                first = number * BLOCK
                block = self.block(r.index, r.stream, number)
                yield r.row, block[max(r.start - first, 0) : min(r.stop - first, BLOCK)]

    def _count_batch(self) -> None:
        if not self.capture:
            self._forward_and_count()
            return
        with torch.cuda.device_of(self.x):
            if self.graph is None:
                self._capture()
            assert self.graph is not None
            self.graph.replay()

    def _forward_and_count(self) -> None:
        """Run a forward pass and add the predicted classes to the counts. This is the part that is captured."""
        with torch.autocast(self.x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(self.x)
        shape = (len(self.x), self.num_classes)
        if not isinstance(logits, Tensor) or logits.shape != shape:
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else a_type(logits)
            raise ValueError(f"the model returned {what} for {len(self.x)} images; it must return logits {shape}")
        self.counts.view(-1).index_add_(0, self.row_of * self.num_classes + logits.argmax(1), self.ones)
        self.not_finite.index_add_(0, self.row_of, (~logits.isfinite()).any(1).long())

    def _capture(self) -> None:
        row_of = self.row_of.clone()
        self.row_of.fill_(self.padding_row)  # warmup passes must not count for an image
        self.graph = capture_graph(self._forward_and_count)
        self.row_of.copy_(row_of)

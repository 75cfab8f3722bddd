"""Base class of perturbations of pixel values, which always work in [0, 1], regardless of how images are normalized."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from maxup.batch import Batch, Draw, set_leaves
from maxup.perturb.base import Perturbation, constant, images, match_memory_format
from maxup.validate import check_real, is_capturing

MARGIN = 0.5  # tolerance around [0, 1]: resizing overshoots less, normalized images exceed it


class Pixels(Perturbation):
    """Base class of perturbations of pixels in [0, 1]. Subclasses define `draw` and `change(pixels, draw)`.

    uint8 images are scaled to [0, 1] and back; `mean` and `std` do not apply to them.

    Args:
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.
    """

    clips = True  # whether results are clipped to [0, 1]

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        key: Hashable | None = None,
    ) -> None:
        self.mean, self.std, self.key = self._numbers("mean", mean), self._numbers("std", std), key
        self._range_checked = False
        if min(self.std) <= 0:
            raise ValueError(f"{self._name}(std={std!r}): every standard deviation must be above 0")

    def _numbers(self, name: str, value: Any) -> tuple[float, ...]:
        """Check one number, or one per channel."""
        value = value.tolist() if hasattr(value, "tolist") else value
        values = value if isinstance(value, list | tuple) and value else [value]
        return tuple(check_real(self._name, name, v, "a finite number, or one per channel") for v in values)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def change(self, pixels: Tensor, draw: Draw) -> Tensor:
        """Return pixels in [0, 1], (B, C, H, W) in float32 or float64, changed by the draw."""
        raise NotImplementedError(f"{self._name} must define change(pixels, draw)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        x, y = batch
        return set_leaves(x, [self._changed(leaf, draw) for leaf in self._images(x)], self.key), y

    def _images(self, x: Any) -> list[Tensor]:
        leaves = images(x, self.key, self._name)
        for leaf in leaves:
            if leaf.shape[1] not in (1, 3):
                raise ValueError(f"{self._name} expects gray or RGB images, but x has {leaf.shape[1]} channels")
            if {len(self.mean), len(self.std)} - {1, leaf.shape[1]}:
                raise ValueError(
                    f"{self._name}: mean {self.mean} and std {self.std} do not match {leaf.shape[1]} channels; "
                    "pass one number, or one per channel"
                )
            if not leaf.is_floating_point() and leaf.dtype != torch.uint8:
                raise TypeError(f"{self._name} expects floating-point or uint8 images, not {leaf.dtype}; use .float()")
        return leaves

    def _check_range(self, pixels: Tensor) -> None:
        """Raise if x seems normalized, but mean and std were not passed. Runs once, since it synchronizes a GPU."""
        if (
            self._range_checked
            or not self.clips
            or not pixels.numel()
            or pixels.is_meta
            or torch.compiler.is_compiling()
            or is_capturing(pixels.device)
        ):
            return
        low, high = (float(end) for end in pixels.aminmax())
        if low < -MARGIN or high > 1 + MARGIN:
            raise ValueError(
                f"{self._name} expects pixels in [0, 1], but with mean {self.mean} and std {self.std} they range from "
                f"{low:.3g} to {high:.3g}; pass the mean= and std= that x was normalized with; if you add noise, "
                "add it after this perturbation"
            )
        self._range_checked = True

    def _changed(self, leaf: Tensor, draw: Draw) -> Tensor:
        if leaf.dtype == torch.uint8:
            changed = self.change(leaf / 255, draw) * 255
            return match_memory_format(changed.round().clamp(0, 255).to(leaf.dtype), leaf)
        dtype = torch.promote_types(leaf.dtype, torch.float32)
        mean, std = (constant(v, leaf.device, dtype).view(-1, 1, 1) for v in (self.mean, self.std))  # (C, 1, 1)
        pixels = leaf.to(dtype) * std + mean
        self._check_range(pixels)
        changed = self.change(pixels, draw)
        return match_memory_format(((changed - mean) / std).to(leaf.dtype), leaf)

"""What the perturbations share that ask how bright a pixel is: they see [0, 1], whatever the images' normalization."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from maxup.batch import Batch, Draw, set_leaves
from maxup.perturb.base import Perturbation, constant, images, in_format_of
from maxup.validate import check_real, is_capturing

MARGIN = 0.5  # by which pixels may leave [0, 1]: resizing overshoots, normalized ones go further


class Pixels(Perturbation):
    """Base of perturbations of pixels in [0, 1]: subclasses write `draw` and `change(pixels, draw)`.

    Args:
        mean: What was subtracted from every channel of pixels in [0, 1]; one number, or one a channel.
        std: What they were divided by then, likewise. The defaults stand for images in [0, 1]; bytes are bytes.
        key: Which entry of x holds the images; default every floating leaf, all with one draw.
    """

    cuts = True  # whether pixels beyond [0, 1] are cut off

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        key: Hashable | None = None,
    ) -> None:
        self.mean, self.std, self.key = self._numbers("mean", mean), self._numbers("std", std), key
        self._seen = False  # whether a batch was looked at
        if min(self.std) <= 0:
            raise ValueError(f"{self._name}(std={std!r}): every deviation must be above 0")

    def _numbers(self, name: str, said: Any) -> tuple[float, ...]:
        """One number, or one a channel."""
        said = said.tolist() if hasattr(said, "tolist") else said
        values = said if isinstance(said, list | tuple) and said else [said]
        return tuple(check_real(self._name, name, value, "a finite number, or one a channel") for value in values)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def change(self, pixels: Tensor, draw: Draw) -> Tensor:
        """Pixels in [0, 1] as the draw says: (B, C, H, W) of float32 or float64."""
        raise NotImplementedError(f"{self._name} must define change(pixels, draw)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        x, y = batch
        return set_leaves(x, [self._changed(leaf, draw) for leaf in self._images(x)], self.key), y

    def _images(self, x: Any) -> list[Tensor]:
        leaves = images(x, self.key, self._name)
        for leaf in leaves:
            if leaf.shape[1] not in (1, 3):
                raise ValueError(f"{self._name} wants gray or RGB images, but x holds {leaf.shape[1]} channels")
            if {len(self.mean), len(self.std)} - {1, leaf.shape[1]}:
                raise ValueError(
                    f"{self._name}: mean {self.mean} and std {self.std} do not fit {leaf.shape[1]} channels; "
                    "give one number, or one a channel"
                )
            if not leaf.is_floating_point() and leaf.dtype != torch.uint8:
                raise TypeError(f"{self._name} wants floating images or bytes, not {leaf.dtype}; use .float()")
        return leaves

    def _check_range(self, pixels: Tensor) -> None:
        """Refuse normalized images whose mean and std nobody told: once, since looking makes a GPU wait."""
        if (
            self._seen
            or not self.cuts
            or not pixels.numel()
            or pixels.is_meta
            or torch.compiler.is_compiling()
            or is_capturing(pixels.device)
        ):
            return
        low, high = (float(end) for end in pixels.aminmax())
        if low < -MARGIN or high > 1 + MARGIN:
            raise ValueError(
                f"{self._name} is for pixels in [0, 1], but with mean {self.mean} and std {self.std} they run from "
                f"{low:.3g} to {high:.3g}; give the mean= and std= that x was normalized by, and add noise behind it"
            )
        self._seen = True

    def _changed(self, leaf: Tensor, draw: Draw) -> Tensor:
        if leaf.dtype == torch.uint8:
            changed = self.change(leaf / 255, draw) * 255
            return in_format_of(changed.round().clamp(0, 255).to(leaf.dtype), leaf)
        dtype = torch.promote_types(leaf.dtype, torch.float32)
        mean, std = (constant(v, leaf.device, dtype).view(-1, 1, 1) for v in (self.mean, self.std))  # (C, 1, 1)
        pixels = leaf.to(dtype) * std + mean
        self._check_range(pixels)
        changed = self.change(pixels, draw)
        return in_format_of(((changed - mean) / std).to(leaf.dtype), leaf)

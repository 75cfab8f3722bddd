"""RandAugment (Cubuk et al., 2020): a few random operations of the same strength."""

from collections.abc import Hashable, Sequence
from numbers import Integral

from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import integers
from maxup.perturb.operations import NUMBER
from maxup.perturb.policy import Policy, paper_magnitudes, signed
from maxup.validate import check_int


class RandAugment(Policy):
    """Apply `num_ops` operations in sequence to each image, each drawn from fourteen, with a random sign.

    Operations, magnitudes and defaults match torchvision's: nearest interpolation, black fill, 256 levels.

    Args:
        num_ops: Number of operations per image.
        magnitude: Strength of the operations, 0 to bins - 1.
        bins: Number of strengths.
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        mask_fill: Label for pixels from outside the image in integer masks (B, H, W) in y. Masks move with the images.
            Default: -100, which `F.cross_entropy` ignores.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> import torch
        >>> x, y = RandAugment()(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        *,
        bins: int = 31,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        mask_fill: int = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, mask_fill=mask_fill, key=key)
        self.num_ops = check_int("RandAugment", "num_ops", num_ops, 1)
        self.magnitude, self.bins = magnitude, check_int("RandAugment", "bins", bins, 2)
        if not isinstance(magnitude, Integral) or isinstance(magnitude, bool) or magnitude not in range(bins):
            raise ValueError(f"RandAugment(magnitude={magnitude!r}): magnitude must be a whole number, 0 to {bins - 1}")

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        like = self._images(batch[0])[0]
        # all operations but Invert, the last one
        operation = integers((len(like), self.num_ops), NUMBER["Invert"], like, generator)
        magnitude = paper_magnitudes(self.bins, like)[:, self.magnitude]  # (operations,)
        return {"operation": operation, "magnitude": signed(operation, magnitude[operation], generator)}

"""TrivialAugment (Müller and Hutter, 2021): one random operation of random strength, with nothing to tune."""

from collections.abc import Hashable, Sequence

from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import integers
from maxup.perturb.operations import NUMBER
from maxup.perturb.policy import Policy, magnitudes, signed
from maxup.validate import check_int


class TrivialAugment(Policy):
    """Apply one of fourteen operations to each image, with one of `bins` strengths from the paper's wide range.

    Operations, magnitudes and defaults match torchvision's `TrivialAugmentWide`: nearest interpolation, black fill, 256
    levels.

    Args:
        bins: Number of strengths.
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        mask_fill: Label for pixels from outside the image in integer masks (B, H, W) in y. Masks move with the images.
            Default: -100, which `F.cross_entropy` ignores.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> import torch
        >>> x, y = TrivialAugment()(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        *,
        bins: int = 31,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        mask_fill: int = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, mask_fill=mask_fill, key=key)
        self.bins = check_int("TrivialAugment", "bins", bins, 2)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        like = self._images(batch[0])[0]
        operation = integers((len(like), 1), NUMBER["Invert"], like, generator)  # all but Invert, the last one
        strength = integers((len(like), 1), self.bins, like, generator)
        table = magnitudes(self.bins, 0.99, 32, 32, 135, 0.99, 6, like.device)
        return {"operation": operation, "magnitude": signed(operation, table[operation, strength], generator)}

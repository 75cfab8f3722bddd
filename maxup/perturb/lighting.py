"""PCA lighting noise (Krizhevsky et al., 2012): shift colors along the principal components of ImageNet's colors."""

from collections.abc import Hashable, Sequence

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.perturb.base import constant
from maxup.perturb.noise import check_nonnegative
from maxup.perturb.pixels import Pixels

EIGENVALUES = (0.2175, 0.0188, 0.0045)  # of the covariance of ImageNet's RGB values in [0, 1]; the usual constants
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))  # in columns


class Lighting(Pixels):
    """Add one color per image: the sum over k of alpha_k * eigenvalue_k * eigenvector_k.

    The draw is alpha, (B, 3), normal with standard deviation `sigma`. Pixels are not clipped.

    Args:
        sigma: Standard deviation of alpha.
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = Lighting(0.1)(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    clips = False

    def __init__(
        self,
        sigma: float = 0.1,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, key=key)
        self.sigma = check_nonnegative("Lighting", "sigma", sigma)

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        like = self._images(batch[0])[0]
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.sigma * torch.randn(len(like), 3, dtype=dtype, device=like.device, generator=generator)

    def change(self, pixels: Tensor, draw: Tensor) -> Tensor:
        if pixels.shape[1] != 3:
            raise ValueError(
                "Lighting expects RGB images, but x holds gray images; convert them, as in x.expand(-1, 3, -1, -1)"
            )
        directions, size = (constant(v, pixels.device, pixels.dtype) for v in (EIGENVECTORS, EIGENVALUES))
        shift = (directions * (draw.to(pixels.dtype) * size)[:, None]).sum(2)  # (B, 3)
        return pixels + shift[:, :, None, None]

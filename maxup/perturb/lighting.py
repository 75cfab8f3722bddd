"""PCA lighting noise (Krizhevsky et al., 2012): shift an image's color along the main directions of ImageNet's."""

from collections.abc import Hashable, Sequence

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.perturb.base import constant
from maxup.perturb.noise import nonnegative
from maxup.perturb.pixels import Pixels

EIGENVALUES = (0.2175, 0.0188, 0.0045)  # of the covariance of ImageNet's RGB values in [0, 1], as everybody uses them
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))  # in columns


class Lighting(Pixels):
    """Add one color to all pixels of an image: the sum of eigenvector k times eigenvalue k times alpha k.

    The draw is alpha, (B, 3), normal with deviation `sigma`. Nothing is cut off at 0 and 1.

    Args:
        sigma: Standard deviation of alpha.
        mean: Mean that was subtracted from the channels of pixels in [0, 1]; the default is for images in [0, 1].
        std: What they were divided by then.
        key: Which entry of x holds the images; default every floating leaf, all with one draw.

    Example:
        >>> x, y = Lighting(0.1)(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    cuts = False

    def __init__(
        self,
        sigma: float = 0.1,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, key=key)
        self.sigma = nonnegative("Lighting", "sigma", sigma)

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        like = self._images(batch[0])[0]
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.sigma * torch.randn(len(like), 3, dtype=dtype, device=like.device, generator=generator)

    def change(self, pixels: Tensor, draw: Tensor) -> Tensor:
        if pixels.shape[1] != 3:
            raise ValueError("Lighting wants RGB images, but x holds gray ones, which have no color")
        directions, size = (constant(v, pixels.device, pixels.dtype) for v in (EIGENVECTORS, EIGENVALUES))
        shift = (directions * (draw.to(pixels.dtype) * size)[:, None]).sum(2)  # (B, 3)
        return pixels + shift[:, :, None, None]

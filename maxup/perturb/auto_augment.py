"""AutoAugment (Cubuk et al., 2019): the learned policies for ImageNet and CIFAR-10."""

from collections.abc import Hashable, Sequence

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.losses import IGNORE_INDEX
from maxup.perturb.base import constant, integers, uniform
from maxup.perturb.operations import NUMBER
from maxup.perturb.policy import Policy, paper_magnitudes, signed

# Each line is a sub-policy: two operations, each with its probability and its magnitude, 0 to 9 (0 if it takes none).
POLICIES = {
    "imagenet": """
        Posterize 0.4 8     Rotate 0.6 9
        Solarize 0.6 5      AutoContrast 0.6 0
        Equalize 0.8 0      Equalize 0.6 0
        Posterize 0.6 7     Posterize 0.6 6
        Equalize 0.4 0      Solarize 0.2 4
        Equalize 0.4 0      Rotate 0.8 8
        Solarize 0.6 3      Equalize 0.6 0
        Posterize 0.8 5     Equalize 1.0 0
        Rotate 0.2 3        Solarize 0.6 8
        Equalize 0.6 0      Posterize 0.4 6
        Rotate 0.8 8        Color 0.4 0
        Rotate 0.4 9        Equalize 0.6 0
        Equalize 0.0 0      Equalize 0.8 0
        Invert 0.6 0        Equalize 1.0 0
        Color 0.6 4         Contrast 1.0 8
        Rotate 0.8 8        Color 1.0 2
        Color 0.8 8         Solarize 0.8 7
        Sharpness 0.4 7     Invert 0.6 0
        ShearX 0.6 5        Equalize 1.0 0
        Color 0.4 0         Equalize 0.6 0
        Equalize 0.4 0      Solarize 0.2 4
        Solarize 0.6 5      AutoContrast 0.6 0
        Invert 0.6 0        Equalize 1.0 0
        Color 0.6 4         Contrast 1.0 8
        Equalize 0.8 0      Equalize 0.6 0
    """,
    "cifar10": """
        Invert 0.1 0        Contrast 0.2 6
        Rotate 0.7 2        TranslateX 0.3 9
        Sharpness 0.8 1     Sharpness 0.9 3
        ShearY 0.5 8        TranslateY 0.7 9
        AutoContrast 0.5 0  Equalize 0.9 0
        ShearY 0.2 7        Posterize 0.3 7
        Color 0.4 3         Brightness 0.6 7
        Sharpness 0.3 9     Brightness 0.7 9
        Equalize 0.6 0      Equalize 0.5 0
        Contrast 0.6 7      Sharpness 0.6 5
        Color 0.7 7         TranslateX 0.5 8
        Equalize 0.3 0      AutoContrast 0.4 0
        TranslateY 0.4 3    Sharpness 0.2 6
        Brightness 0.9 6    Color 0.2 8
        Solarize 0.5 2      Invert 0.0 0
        Equalize 0.2 0      AutoContrast 0.6 0
        Equalize 0.2 0      Equalize 0.6 0
        Color 0.9 9         Equalize 0.6 0
        AutoContrast 0.8 0  Solarize 0.2 8
        Brightness 0.1 3    Color 0.7 0
        Solarize 0.4 5      AutoContrast 0.9 0
        TranslateY 0.9 9    TranslateY 0.7 9
        AutoContrast 0.9 0  Solarize 0.8 3
        Equalize 0.8 0      Invert 0.1 0
        TranslateY 0.7 9    AutoContrast 0.9 0
    """,
}


class AutoAugment(Policy):
    """Apply one of 25 sub-policies to each image: two operations, each with its probability and a random sign.

    Policies, magnitudes and operations match torchvision's: nearest interpolation, black fill, 256 levels. In the draw,
    an operation that was skipped is Identity.

    Args:
        policy: "imagenet" or "cifar10".
        mean: Mean that x was normalized with, one number or one per channel. Default: 0, for images in [0, 1].
        std: Standard deviation that x was normalized with, likewise. Default: 1.
        mask_fill: Label for pixels from outside the image in integer masks (B, H, W) in y. Masks move with the images.
            Default: -100, which `F.cross_entropy` ignores.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = AutoAugment("cifar10")(torch.rand(8, 3, 32, 32), torch.zeros(8))
        >>> x.shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        policy: str = "imagenet",
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        mask_fill: int = IGNORE_INDEX,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(mean, std, mask_fill=mask_fill, key=key)
        if policy not in list(POLICIES):
            raise ValueError(f"AutoAugment(policy={policy!r}): policy must be one of {', '.join(POLICIES)}")
        self.policy = policy
        self.table = parse(POLICIES[policy])

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        like = self._images(batch[0])[0]
        chosen = integers((len(like),), len(self.table), like, generator)
        table = constant(self.table, like.device)[chosen]  # (B, 2, 3)
        operation, probability, strength = table[..., 0].long(), table[..., 1], table[..., 2].long()
        happens = uniform((len(like), 2), 0, 1, probability, generator) < probability
        operation = torch.where(happens, operation, NUMBER["Identity"])
        magnitude = paper_magnitudes(10, like)[operation, strength]
        return {"operation": operation, "magnitude": signed(operation, magnitude, generator)}


def parse(text: str) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Parse a policy into tuples: the index in `OPERATIONS`, probability and magnitude of each operation.

    Example:
        >>> parse("Posterize 0.4 8     Rotate 0.6 9")
        (((10, 0.4, 8.0), (5, 0.6, 9.0)),)
    """
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(
        tuple((NUMBER[name], float(probability), float(bin_)) for name, probability, bin_ in (row[:3], row[3:]))
        for row in rows
    )

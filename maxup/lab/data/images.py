"""Labeled images in memory, and stratified subsets of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data.loader import DeviceLoader

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder

Data = TypeVar("Data", "Images", "Folder")


@dataclass(frozen=True, eq=False)
class Images:
    """A set of labeled images.

    Args:
        x: Bytes, (N, C, H, W).
        y: Classes in 0 ... len(classes) - 1, int64, (N,).
        classes: Names of the classes.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel, of pixels in [0, 1].
        top: The byte value of a pixel of 1.0.
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    top: int = 255

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        if x.dtype != torch.uint8 or x.ndim != 4:
            raise DataError(f"x is {x.dtype} of shape {tuple(x.shape)}; it must be torch.uint8 of shape (N, C, H, W)")
        if y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise DataError(f"y is {y.dtype} of shape {tuple(y.shape)}; it must be torch.int64 of shape ({len(x)},)")
        if not len(self.mean) == len(self.std) == x.shape[1] or min(self.std) <= 0 or self.top < 1:
            raise DataError(
                f"expected {x.shape[1]} means, {x.shape[1]} positive stds and top >= 1, but got mean={self.mean}, "
                f"std={self.std}, top={self.top}"
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(self.classes):
            raise DataError(
                f"labels range from {int(y.min())} to {int(y.max())}, but there are {len(self.classes)} classes "
                f"(valid: 0 to {len(self.classes) - 1}); fix y or classes"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image, (C, H, W)."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def digest(self) -> str:
        """SHA-256 of the images and labels."""
        digest = hashlib.sha256(f"{tuple(self.x.shape)} {self.top}".encode())
        for part in (self.x, self.y):
            digest.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def loader(self, batch_size: int, *, training: bool, **options: Any) -> DeviceLoader:
        """Return a loader: shuffled, with equal ranks, in training; otherwise in order, each image exactly once."""
        return DeviceLoader(self, batch_size, shuffle=training, pad=training, **options)

    def subset(self, indices: Tensor | Sequence[int]) -> "Images":
        """Return these images, in this order."""
        rows = torch.as_tensor(indices, device=self.x.device)
        if rows.ndim != 1 or (rows.numel() and (rows.is_floating_point() or rows.dtype == torch.bool)):
            raise DataError(f"indices are {rows.dtype} of shape {tuple(rows.shape)}; pass a list of integers")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise DataError(
                f"indices range from {int(rows.min())} to {int(rows.max())}; they must be 0 to {len(self) - 1}"
            )
        return replace(self, x=self.x[rows.long()], y=self.y[rows.long()])

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x / top - mean) / std, for bytes (..., C, H, W) on any device.

        Only the first call on a device copies the constants there and synchronizes.
        """
        return normalize(x, self.mean, self.std, self.top)


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...], top: int) -> Tensor:
    """Return (x / top - mean) / std, for bytes (..., C, H, W) on any device."""
    scale, shift = _scale_and_shift(mean, std, top, x.device)
    return torch.addcmul(shift, x.float(), scale)


@cache
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], top: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel, (C, 1, 1), on a device."""
    means, stds = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]  # (C, 1, 1) each
    scale, shift = 1 / (top * stds), -means / stds
    return scale.float().to(device), shift.float().to(device)


def stratified(y: Tensor, n: int, seed: int) -> Tensor:
    """Choose n examples with the class proportions of all. Fractions are rounded by the largest remainder.

    Args:
        y: Classes, (N,).
        n: Number of examples, 1 to N.
        seed: Seed of the choice. The number of examples per class does not depend on it.

    Returns:
        Sorted indices, (n,).
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(y):
        raise DataError(f"cannot choose {n!r} of {len(y)} examples; ask for a whole number from 1 to {len(y)}")
    y = y.cpu()
    count = torch.unique(y, return_counts=True)[1]  # (K,)
    take, remainder = n * count // len(y), n * count % len(y)
    take[remainder.argsort(descending=True, stable=True)[: n - int(take.sum())]] += 1
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argsort(stable=True)]  # sorted by class, in random order within a class
    parts = order.split(count.tolist())
    return torch.cat([part[:k] for part, k in zip(parts, take.tolist(), strict=True)]).sort().values


def split(images: Data, n: int, seed: int) -> tuple[Data, Data]:
    """Split images into a stratified subset of n images and the rest."""
    if n >= len(images):
        raise DataError(
            f"data.train_size={n} must be below the number of images, {len(images)}; use null for all images"
        )
    chosen = stratified(images.y, n, seed)
    rest = torch.ones(len(images), dtype=torch.bool)
    rest[chosen] = False
    return images.subset(chosen), images.subset(rest.nonzero()[:, 0])


def from_arrays(arrays: Any) -> tuple[Images, Images | None]:
    """Make `Images` from a user's arrays. Channels are normalized with the mean and std of the training images.

    Args:
        arrays: (x, y), or (x, y, x_test, y_test). Images are bytes, (N, H, W) or (N, C, H, W); labels are classes.
    """
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, 4):
        raise DataError(f"your data is a {type(arrays).__name__}; return (x, y) or (x, y, x_test, y_test)")
    try:
        x, y, *test = (torch.as_tensor(array) for array in arrays)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"your data cannot be converted to tensors ({error}); return tensors or numpy arrays") from None
    if x.dtype != torch.uint8 or x.ndim not in (3, 4) or not len(x):
        raise DataError(
            f"your images are {x.dtype} of shape {tuple(x.shape)}; return torch.uint8 of shape (N, C, H, W), for "
            "example (255 * x).round().to(torch.uint8) for pixels in [0, 1]"
        )
    if x.ndim == 4 and x.shape[1] > 4 >= x.shape[3]:
        raise DataError(
            f"your images have shape {tuple(x.shape)}, which looks like (N, H, W, C); return (N, C, H, W), for example "
            "x.permute(0, 3, 1, 2)"
        )
    for labels in (y, *test[1:]):
        if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1 or not len(labels):
            raise DataError(
                f"your labels are {labels.dtype} of shape {tuple(labels.shape)}; return one integer class per image"
            )
    if test and (unseen := sorted(set(test[1].tolist()) - set(y.tolist()))):
        raise DataError(f"your test images have classes without a training image: {str(unseen)[1:-1]}")
    if test and (test[0].dtype != x.dtype or test[0].shape[1:] != x.shape[1:]):
        raise DataError(
            f"your test images are {test[0].dtype} of shape {tuple(test[0].shape)}, but your training images are "
            f"{x.dtype} of shape {tuple(x.shape)}; return images of the same type and size"
        )
    classes = tuple(str(c) for c in range(int(torch.cat([y, *test[1:]]).max()) + 1))
    x = x.unflatten(0, (-1, 1)) if x.ndim == 3 else x
    train = Images(x, y.long(), classes, *mean_and_std(x))
    if not test:
        return train, None
    x_test = test[0].unflatten(0, (-1, 1)) if test[0].ndim == 3 else test[0]
    return train, replace(train, x=x_test, y=test[1].long())


def mean_and_std(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation per channel of bytes (N, C, H, W), as pixels in [0, 1]."""
    pixels = x.transpose(0, 1).flatten(1).double() / 255  # (C, N * H * W)
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp_min(1e-3).tolist())

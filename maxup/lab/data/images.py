"""Labeled images, rows of numbers or token ids in memory, and stratified subsets of them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data.loader import DeviceLoader

if TYPE_CHECKING:
    from maxup.lab.data.folder import Folder
    from maxup.lab.data.stream import Stream

Data = TypeVar("Data", "Images", "Folder", "Stream")
CHUNK = 2**22  # values that are converted to doubles at a time
DTYPES = {torch.uint8: (4,), torch.float32: (2, 4, 5), torch.int64: (2,)}  # of x, and its number of dimensions


@dataclass(frozen=True, eq=False)
class Images:
    """A set of labeled images, rows of numbers, or token ids.

    Args:
        x: Images as bytes or float32, (N, C, H, W); rows as float32, (N, C); or token ids as int64, (N, T).
        y: Classes in 0 ... len(classes) - 1, int64, (N,).
        classes: Names of the classes.
        mean: Mean of x / top per channel, or per column of rows. () for token ids.
        std: Standard deviation, likewise.
        top: The value that represents 1.0: 255 for bytes, 1 for floats.
        columns: Names of the columns of rows, in order. () if they have none.
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    top: int = 255
    columns: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        if x.ndim not in DTYPES.get(x.dtype, ()):
            raise DataError(
                f"x is {x.dtype} of shape {tuple(x.shape)}; it must be torch.uint8 of shape (N, C, H, W), "
                "torch.float32 of shape (N, C, H, W) or (N, C), or torch.int64 of shape (N, T)"
            )
        if y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise DataError(f"y is {y.dtype} of shape {tuple(y.shape)}; it must be torch.int64 of shape ({len(x)},)")
        check_statistics(self)
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(self.classes):
            raise DataError(
                f"labels range from {int(y.min())} to {int(y.max())}, but there are {len(self.classes)} classes "
                f"(valid: 0 to {len(self.classes) - 1}); fix y or classes"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an example: (C, H, W) of an image."""
        return tuple(self.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Type of x."""
        return self.x.dtype

    @property
    def in_unit_range(self) -> bool:
        """Whether x / top is in [0, 1]."""
        return self.dtype == torch.uint8 or in_unit_range(self.x)

    @property
    def digest(self) -> str:
        """SHA-256 of the images and labels."""
        digest = hashlib.sha256(f"{tuple(self.x.shape)} {self.top}".encode())
        for part in (self.x, self.y):
            digest.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def loader(self, batch_size: int, *, training: bool, **options: Any) -> DeviceLoader:
        """Return a loader: shuffled, with equal ranks, in training; otherwise in order, each image exactly once."""
        return DeviceLoader(self, batch_size, training=training, **options)

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
        """Return (x / top - mean) / std, for examples (..., *shape) on any device. Token ids are returned as they are.

        Only the first call on a device copies the constants there and synchronizes.
        """
        return normalize(x, self.mean, self.std, self.top, len(self.shape) - 1)

    def with_statistics(self) -> "Images":
        """Return the same examples with their own mean and std."""
        mean, std = mean_and_std(self.x.split(max(1, CHUNK // max(self.x[:1].numel(), 1))), self.top)
        return replace(self, mean=mean, std=std)


def check_statistics(data: "Images | Stream") -> None:
    """Raise a DataError if mean, std or top do not fit the examples."""
    channels, mean, std = 0 if data.dtype == torch.int64 else data.shape[0], data.mean, data.std
    if not len(mean) == len(std) == channels or min(std, default=1) <= 0 or data.top < 1:
        raise DataError(
            f"expected {channels} means, {channels} positive stds and top >= 1, but got mean={mean}, std={std}, "
            f"top={data.top}"
        )


def in_unit_range(x: Tensor) -> bool:
    """Whether all values are in [0, 1]."""
    low, high = (float(value) for value in x.aminmax())
    return 0 <= low <= high <= 1


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...], top: int, dims: int = 2) -> Tensor:
    """Return (x / top - mean) / std, for x with `dims` dimensions after the channels.

    Token ids, which have no mean, are returned as they are.
    """
    if not mean:
        return x
    scale, shift = _scale_and_shift(mean, std, top, dims, x.device)
    return torch.addcmul(shift, x.float(), scale)


@cache
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], top: int, dims: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel, (C, 1, 1) for images, on a device."""
    means, stds = torch.tensor([mean, std], dtype=torch.float64).view(2, -1, *[1] * dims)  # (C, 1, 1) each
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


def split(images: Data, n: int, seed: int, *, every_class: bool = False) -> tuple[Data, Data]:
    """Split images into a stratified subset of n images and the rest.

    With `every_class`, an image of each class that has none among the n images is added to the subset.
    """
    if n >= len(images):
        raise DataError(
            f"data.train_size={n} must be below the number of images, {len(images)}; use null for all images"
        )
    chosen, y = stratified(images.y, n, seed), images.y.cpu()
    if every_class:
        missing = set(y.tolist()) - set(y[chosen].tolist())
        added = torch.tensor([int((y == c).nonzero()[0]) for c in sorted(missing)], dtype=torch.int64)
        chosen = torch.cat([chosen, added]).sort().values
        if len(chosen) == len(images):
            raise DataError(
                f"the {len(images)} images are one per class or nearly so, and each class needs one in training, which "
                "leaves none for evaluation; add images"
            )
    rest = torch.ones(len(images), dtype=torch.bool)
    rest[chosen] = False
    return images.subset(chosen), images.subset(rest.nonzero()[:, 0])


def evenly_spaced(total: int, count: int | None) -> list[int]:
    """Return `count` evenly spaced indices below `total`, or all if `count` is None or larger.

    Image folders are sorted by class, so the first images would miss classes.

    Example:
        >>> evenly_spaced(10, 4), evenly_spaced(3, None)
        ([0, 2, 5, 7], [0, 1, 2])
    """
    count = min(total, count or total)
    return [i * total // count for i in range(count)]


def mean_and_std(chunks: Iterable[Tensor], top: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of x / top per channel, and 1 as that of a constant. Token ids have none.

    Args:
        chunks: The examples in parts, each (N, C, ...). Only one of them is in memory as doubles.
        top: The value that represents 1.0: 255 for bytes, 1 for floats.
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())  # squares: sum of squared distances from the mean
    for x in chunks:
        if x.dtype == torch.int64:
            return (), ()
        values = x.transpose(0, 1).flatten(1).double() / top  # (C, N * H * W)
        n, center = values.shape[1], values.mean(1)
        distance = center - mean
        squares = squares + values.var(1, correction=0) * n + distance**2 * (count * n / (count + n))
        mean, count = mean + distance * (n / (count + n)), count + n
    std = (squares / max(count - 1, 1)).sqrt()
    # Rounding errors are below the bound. Values that differ in float32 are not, for up to 10^9 of them.
    smallest = 1e-12 * mean.abs() + torch.finfo(torch.float32).tiny
    return tuple(mean.tolist()), tuple(torch.where(std > smallest, std, 1.0).tolist())

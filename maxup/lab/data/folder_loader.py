"""Load batches of image files. Worker processes decode and crop; the main process copies to the device."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from maxup.errors import DataError
from maxup.lab.data.decode import center_crop, random_crop, read_rgb, why_unreadable
from maxup.lab.data.folder import Folder
from maxup.lab.data.loader import Batch, Loader
from maxup.lab.data.workers import batches_from_workers
from maxup.rng import make_generator


class FolderLoader(Loader):
    """A loader of image files.

    In training, the crop of an image depends only on (seed, epoch, index). The number of workers changes nothing, and
    a resumed run sees the same crops.

    `unreadable` collects the indices of files that cannot be read. In training, the next readable image of the batch
    replaces such a file, so that batches keep their size. In evaluation, it is left out.

    Args:
        batch_size: Images per batch and rank.
        options: Options of `Loader`: training, seed, device, drop_last, rank, world_size. Crops are random in training,
            otherwise in the center.
    """

    def __init__(self, folder: Folder, batch_size: int, **options: Any) -> None:
        super().__init__(len(folder), batch_size, **options)
        self.folder = folder
        self.unreadable: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the files that could not be read so far."""
        return {**super().state_dict(), "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another loader with the same arguments stopped."""
        unreadable = state.get("unreadable")
        if not isinstance(unreadable, list) or not all(type(i) is int and 0 <= i < self.n for i in unreadable):
            raise DataError(
                f"unreadable={unreadable!r:.80} is invalid in the state of a loader; it must be a list of indices "
                f"below {self.n}"
            )
        super().load_state_dict({key: value for key, value in state.items() if key != "unreadable"})
        self.unreadable = set(unreadable)

    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        seed = self.seed if self.training else None
        decoded = _Decoded(self.folder, [part.numpy() for part in rows], seed, self.epoch)
        for indices, x, unreadable in batches_from_workers(decoded, self.folder.workers, self.device):
            self.unreadable.update(unreadable.tolist())
            if not len(x) and self.training:
                why = why_unreadable(self.folder.path(int(unreadable[0])))
                raise DataError(f"none of the {len(unreadable)} images of a batch can be read, for example {why}")
            if len(x):
                yield self._to_device(indices), self._to_device(x), self._to_device(self.folder.y[indices])


class _Decoded(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Batches by number: indices (B,), bytes (B, 3, H, W), and the indices of unreadable files."""

    def __init__(self, folder: Folder, rows: list[np.ndarray], seed: int | None, epoch: int) -> None:
        self.folder, self.rows, self.seed, self.epoch = folder, rows, seed, epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.rows[number].tolist()
        images = {index: self._decode(index) for index in rows}
        unreadable = [index for index in rows if images[index] is None]
        kept = [index for index in rows if images[index] is not None]
        if self.seed is not None and kept:
            kept = _next_readable(rows, set(unreadable))
        x = [image for index in kept if (image := images[index]) is not None]
        return torch.tensor(kept), torch.stack(x) if x else torch.empty(0), torch.tensor(unreadable)

    def _decode(self, index: int) -> Tensor | None:
        folder = self.folder
        try:
            image = read_rgb(folder.path(index))
        except Exception:  # PIL raises many types of errors for damaged files
            return None
        if self.seed is None:
            return center_crop(image, folder.test_size or folder.size, folder.crop_fraction, folder.interpolation)
        return random_crop(
            image, folder.size, make_generator("crop", self.seed, self.epoch, index), folder.interpolation
        )


def _next_readable(rows: list[int], unreadable: set[int]) -> list[int]:
    """Replace every unreadable index of a batch by the next readable one. After the last comes the first.

    Example:
        >>> _next_readable([4, 7, 1, 9], {7, 9})
        [4, 1, 1, 4]
    """
    good = next(row for row in rows if row not in unreadable)  # follows the last index
    kept = []
    for row in reversed(rows):
        good = good if row in unreadable else row
        kept.append(good)
    return kept[::-1]

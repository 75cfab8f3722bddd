"""Load batches in an order that depends only on (seed, epoch, position). Small data sets stay on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.rng import make_generator
from maxup.validate import is_int

if TYPE_CHECKING:
    from maxup.lab.data.images import Images

Batch = tuple[Tensor, Tensor, Tensor]  # indices (B,), x (B, ...) as stored: bytes, floats or token ids, y (B,)


class Loader(ABC):
    """Iterate over n examples for one epoch. Yields `(indices, x, y)` on the device, with x as it is stored.

    The state is `epoch` and `position`, the number of batches yielded in this epoch. A loop that stopped early, or a
    loader that loaded a state, continues there. The epoch counter advances when the iterator is exhausted, not at the
    last batch. If a run resumes right after the last batch, the loop is empty once, and the end-of-epoch code still
    runs.

    The ranks share one global order: step k on all ranks is step k of one process with `world_size` times the batch
    size. In training, a few images are used twice at the end of an epoch, so that all ranks have the same number of
    batches of the same size. Otherwise, every image comes exactly once.

    Args:
        batch_size: Images per batch and rank.
        training: Whether every epoch has a new random order, which is the same on all devices.
        seed: Seed of the orders.
        device: Device of the batches.
        drop_last: Drop the last batch of an epoch if it is not full on every rank, so that all shapes are the same.
        alternating_flip: Whether an image is flipped horizontally in every other epoch. The seed determines for every
            image whether it is flipped in the first epoch.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        training: bool,
        seed: int,
        device: torch.device | str,
        drop_last: bool = False,
        alternating_flip: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("rank", rank, 0)):
            if not is_int(value, least):
                raise DataError(f"{name}={value!r} is invalid; it must be a whole number, {least} or more")
        if rank >= world_size:
            raise DataError(f"rank={rank} is invalid; with world_size={world_size} it must be 0 to {world_size - 1}")
        if not n:
            raise DataError("the data set is empty; it must have at least one image")
        if drop_last and n < batch_size * world_size:
            raise DataError(
                f"{n} images do not fill one batch of {batch_size} on {world_size} ranks, so drop_last leaves "
                "nothing; use smaller batches"
            )
        self.batch_size, self.training, self.seed, self.device = batch_size, training, seed, torch.device(device)
        self.fixed_shapes = drop_last
        self.n, self.rank, self.world_size = n, rank, world_size
        self.epoch = self.position = 0
        first = torch.rand(n, generator=make_generator("flip", seed)) < 0.5 if alternating_flip else None
        self.flipped_first = first  # (n,)

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank."""
        if self.fixed_shapes:
            return self.n // (self.batch_size * self.world_size)
        return -(-self._share() // self.batch_size)

    def steps(self, epochs: int) -> int:
        """Return the number of batches in the first epochs."""
        return epochs * len(self)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._batches(self._rows().split(self.batch_size)[self.position : len(self)])
        for batch in batches:
            self.position += 1  # before the yield: a state saved during this batch resumes after it
            yield batch if self.flipped_first is None else self._flip(batch, self.flipped_first)
        self.epoch, self.position = self.epoch + 1, 0

    def _flip(self, batch: Batch, first: Tensor) -> Batch:
        indices, x, y = batch
        self.flipped_first = first = first.to(indices.device)  # copied once
        flip = first[indices] ^ (self.epoch % 2 == 1)  # (B,)
        return indices, torch.where(flip.view(-1, 1, 1, 1), x.flip(-1), x), y

    @abstractmethod
    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        """Yield the batches with these indices, (B,) each, in this epoch."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where another loader with the same arguments stopped."""
        check_state(state)
        check_position(state["position"], len(self), "batches of an epoch")
        self.epoch, self.position = state["epoch"], state["position"]

    def _share(self) -> int:
        """Return the number of images of this rank per epoch."""
        return -(-self.n // self.world_size) if self.training else len(range(self.rank, self.n, self.world_size))

    def _rows(self) -> Tensor:
        """Return the indices of this rank's images in this epoch, (share,): every world_size-th of the global order."""
        order = torch.arange(self.n)
        if self.training:
            order = torch.randperm(self.n, generator=make_generator("order", self.seed, self.epoch))
        turns = self.rank + self.world_size * torch.arange(self._share())
        return order[turns % self.n]  # wraps around in training

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def check_state(state: Mapping[str, int]) -> None:
    """Raise a DataError unless a state has an epoch and a position."""
    if set(state) != {"epoch", "position"} or not all(is_int(value, 0) for value in state.values()):
        raise DataError(f"{dict(state)} is not the state of a loader; it must have 'epoch' and 'position', 0 or more")


def check_position(position: int, count: int, what: str) -> None:
    """Raise a DataError if a position is after the last of `count` batches."""
    if position > count:
        raise DataError(
            f"position {position} is after the {count} {what}; use the batch size, data and number of processes that "
            "the state was saved with"
        )


class DeviceLoader(Loader):
    """A loader of images that are kept on the device. `options` are those of `Loader`."""

    def __init__(self, images: "Images", batch_size: int, **options: Any) -> None:
        super().__init__(len(images), batch_size, **options)
        self.x, self.y = images.x.to(self.device), images.y.to(self.device)

    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        if rows:
            sizes = [len(part) for part in rows]
            rows = torch.cat(rows).to(self.device).split(sizes)  # one copy per epoch: batches do not synchronize
        for batch in rows:
            yield batch, self.x[batch], self.y[batch]

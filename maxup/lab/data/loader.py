"""Batches in an order that (seed, epoch, position) decide; those of a small data set live on the device as bytes."""

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

Batch = tuple[Tensor, Tensor, Tensor]  # indices (B,), x (B, C, H, W) as bytes, y (B,)


class Loader(ABC):
    """Iterate once over n images: `(indices, x, y)`, all on the device, x as bytes. How they get there is a subclass's.

    `epoch` and `position`, the number of batches handed out in it, are the whole state. A loop that was left early,
    or a loader that loads the state of another, goes on where that one stopped; the epoch ends when the loop asks for a
    batch beyond the last. So a state saved with the last batch gives an empty loop first, and what the caller does at
    the end of an epoch is not skipped.

    Several ranks take turns in one global order: step k of all ranks together is step k of one process with
    `world_size` times the batch. They get equally many batches of equal sizes, by using a few images twice at the end
    of an epoch, unless `pad` is off.

    Args:
        n: How many images there are.
        batch_size: Images in a batch of one rank.
        shuffle: Whether each epoch has a random order of its own, the same on every kind of device.
        seed: Decides the orders.
        drop_last: Leave out what does not fill a batch on every rank, so that all shapes are the same.
        pad: Whether ranks are made equal; off, each image comes exactly once, and ranks may differ: for evaluation.
        rank: Which of the processes this is.
        world_size: How many there are.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
        pad: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("rank", rank, 0)):
            if not is_int(value, least):
                raise DataError(f"{name}={value!r}: {name} must be a whole number, {least} or more")
        if rank >= world_size:
            raise DataError(f"rank={rank} of world_size={world_size}: ranks are 0 to {world_size - 1}")
        if not n:
            raise DataError("the data set is empty; give at least one image")
        if drop_last and n < batch_size * world_size:
            raise DataError(
                f"{n} images do not fill one batch of {batch_size} on {world_size} ranks, and drop_last "
                "leaves nothing; take smaller batches"
            )
        self.batch_size, self.shuffle, self.seed, self.pad = batch_size, shuffle, seed, pad
        self.fixed_shapes = drop_last
        self.n, self.rank, self.world_size = n, rank, world_size
        self.epoch = self.position = 0

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        if self.fixed_shapes:
            return self.n // (self.batch_size * self.world_size)
        return -(-self._share() // self.batch_size)

    def steps(self, epochs: int) -> int:
        """Batches of the first epochs together."""
        return epochs * len(self)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._batches(self._rows().split(self.batch_size)[self.position : len(self)])
        for batch in batches:
            self.position += 1  # before it is handed out: a state saved while it is used goes on after it
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    @abstractmethod
    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        """The batches with these indices, (B,) each, of this epoch."""

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another loader with the same arguments was."""
        if set(state) != {"epoch", "position"} or not all(is_int(value, 0) for value in state.values()):
            raise DataError(f"{dict(state)} is no state of a loader; it has 'epoch' and 'position', 0 or more")
        if state["position"] > len(self):
            raise DataError(
                f"position {state['position']} is beyond the {len(self)} batches of an epoch; load it with the batch "
                "size, data and number of processes it was saved with"
            )
        self.epoch, self.position = state["epoch"], state["position"]

    def _share(self) -> int:
        """Images of this rank in an epoch."""
        return -(-self.n // self.world_size) if self.pad else len(range(self.rank, self.n, self.world_size))

    def _rows(self) -> Tensor:
        """Indices of this rank's images in this epoch, (share,): every world_size-th of the global order."""
        order = torch.arange(self.n)
        if self.shuffle:
            order = torch.randperm(self.n, generator=make_generator("order", self.seed, self.epoch))
        turns = self.rank + self.world_size * torch.arange(self._share())
        return order[turns % self.n]  # wraps around where ranks are made equal


class DeviceLoader(Loader):
    """A loader of images that live on the device.

    Args:
        images: What to iterate over.
        batch_size: Images in a batch of one rank.
        device: Where they live.
        options: Those of `Loader`.

    Example:
        >>> from maxup.lab.data import load_data
        >>> loader = DeviceLoader(load_data("digits")[0], 100, device="cpu", shuffle=True, seed=0)
        >>> len(loader), [len(y) for _, _, y in loader][-2:], loader.epoch
        (18, [100, 97], 1)
    """

    def __init__(self, images: "Images", batch_size: int, *, device: torch.device | str, **options: Any) -> None:
        super().__init__(len(images), batch_size, **options)
        self.x, self.y = images.x.to(device), images.y.to(device)

    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        if rows:
            sizes = [len(part) for part in rows]
            rows = torch.cat(rows).to(self.x.device).split(sizes)  # once an epoch: no batch makes the device wait
        for batch in rows:
            yield batch, self.x[batch], self.y[batch]

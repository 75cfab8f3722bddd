"""Batches of a small data set that lives on the device as bytes, in an order that (seed, epoch, position) decide."""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from maxup.data import DataError
from maxup.data.images import Images


class DeviceLoader:
    """Iterate once over the images: `(indices, x, y)`, all on the device, x as bytes.

    `epoch` and `position`, the number of batches handed out in it, are the whole state. A loop that was left early,
    or a loader that loads the state of another, goes on where that one stopped; the epoch ends when the loop asks for a
    batch beyond the last. So a state saved with the last batch gives an empty loop first, and what the caller does at
    the end of an epoch is not skipped.

    Several ranks take turns in one global order: step k of all ranks together is step k of one process with
    `world_size` times the batch. They get equally many batches of equal sizes, by using a few images twice at the end
    of an epoch, unless `pad` is off.

    Args:
        images: What to iterate over.
        batch_size: Images in a batch of one rank.
        device: Where they live.
        shuffle: Whether each epoch has a random order of its own, the same on every kind of device.
        seed: Decides the orders.
        drop_last: Leave out what does not fill a batch on every rank, so that all shapes are the same.
        pad: Whether ranks are made equal; off, each image comes exactly once, and ranks may differ: for evaluation.
        rank: Which of the processes this is.
        world_size: How many there are.

    Example:
        >>> from maxup.data import load_data
        >>> loader = DeviceLoader(load_data("digits")[0], 100, device="cpu", shuffle=True, seed=0)
        >>> len(loader), [len(y) for _, _, y in loader][-2:], loader.epoch
        (18, [100, 97], 1)
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        device: torch.device | str,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
        pad: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("rank", rank, 0)):
            if not _whole(value, least):
                raise DataError(f"{name}={value!r}: {name} must be a whole number, {least} or more")
        if rank >= world_size:
            raise DataError(f"rank={rank} of world_size={world_size}: ranks are 0 to {world_size - 1}")
        if not len(images):
            raise DataError("the data set is empty; give at least one image")
        if drop_last and len(images) < batch_size * world_size:
            raise DataError(
                f"{len(images)} images do not fill one batch of {batch_size} on {world_size} ranks, and drop_last "
                "leaves nothing; take smaller batches"
            )
        self.batch_size, self.shuffle, self.seed, self.drop_last, self.pad = batch_size, shuffle, seed, drop_last, pad
        self.rank, self.world_size = rank, world_size
        self.x, self.y = images.x.to(device), images.y.to(device)
        self.epoch = self.position = 0

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        if self.drop_last:
            return len(self.x) // (self.batch_size * self.world_size)
        return -(-self._share() // self.batch_size)

    def steps(self, epochs: int) -> int:
        """Batches of the first epochs together."""
        return epochs * len(self)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        rows = self._rows().to(self.x.device)  # (share,), once an epoch: no batch makes the device wait
        while self.position < len(self):
            batch = rows[self.position * self.batch_size :][: self.batch_size]  # (B,)
            self.position += 1  # before it is handed out: a state saved while it is used goes on after it
            yield batch, self.x[batch], self.y[batch]
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another loader with the same arguments was."""
        if set(state) != {"epoch", "position"} or not all(_whole(value, 0) for value in state.values()):
            raise DataError(f"{dict(state)} is no state of a loader; it has 'epoch' and 'position', 0 or more")
        if state["position"] > len(self):
            raise DataError(
                f"position {state['position']} is beyond the {len(self)} batches of an epoch; load it with the batch "
                "size, data and number of processes it was saved with"
            )
        self.epoch, self.position = state["epoch"], state["position"]

    def _share(self) -> int:
        """Images of this rank in an epoch."""
        n = len(self.x)
        return -(-n // self.world_size) if self.pad else len(range(self.rank, n, self.world_size))

    def _rows(self) -> Tensor:
        """Indices of this rank's images in this epoch, (share,): every world_size-th of the global order."""
        order = torch.arange(len(self.x))
        if self.shuffle:
            digest = hashlib.sha256(f"maxup order {self.seed} {self.epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            order = torch.randperm(len(self.x), generator=generator)
        turns = self.rank + self.world_size * torch.arange(self._share())
        return order[turns % len(self.x)]  # wraps around where ranks are made equal


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

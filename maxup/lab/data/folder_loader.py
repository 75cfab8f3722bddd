"""Batches of images in files: worker processes decode and crop them, the main process puts them on the device."""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from maxup.errors import DataError, error_message
from maxup.lab.data.decode import center_crop, random_crop, read_rgb
from maxup.lab.data.folder import Folder
from maxup.lab.data.loader import Batch, Loader
from maxup.rng import make_generator

# What torch says of a worker that is gone, or without shared memory: these errors have no type of their own.
GONE = re.compile(r"DataLoader worker \(pid|Pin memory thread exited|shared memory|\bshm\b")


class FolderLoader(Loader):
    """A loader of images in files.

    The crop of an image in training depends on (seed, epoch, index) alone: the number of workers changes nothing, and a
    run that goes on sees what it would have seen.

    A file that cannot be read is noted in `unreadable`. In training the next image of the batch that can be read,
    after the last the first, takes its place, so that batches keep their size; in evaluation it is left out.

    Args:
        folder: What to iterate over.
        batch_size: Images in a batch of one rank.
        device: Where batches go.
        training: Random crops in random order and equal ranks, or centers in order and every image once.
        options: Those of `Loader`: seed, drop_last, rank, world_size.
    """

    def __init__(
        self, folder: Folder, batch_size: int, *, device: torch.device | str, training: bool, **options: Any
    ) -> None:
        super().__init__(len(folder), batch_size, shuffle=training, pad=training, **options)
        self.folder, self.device, self.training = folder, torch.device(device), training
        self.unreadable: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and what could not be read until there."""
        return {**super().state_dict(), "unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader with the same arguments was."""
        unreadable = state.get("unreadable")
        if not isinstance(unreadable, list) or not all(type(i) is int and 0 <= i < self.n for i in unreadable):
            raise DataError(
                f"a loader of {self.n} image files cannot have been in a state where {unreadable!r:.80} of them "
                "could not be read"
            )
        super().load_state_dict({key: value for key, value in state.items() if key != "unreadable"})
        self.unreadable = set(unreadable)

    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        seed = self.seed if self.training else None
        workers = min(self.folder.workers, len(os.sched_getaffinity(0)), len(rows))
        decoded = DataLoader(
            _Decoded(self.folder, [part.numpy() for part in rows], seed, self.epoch),
            batch_size=None,  # an item is a batch already
            num_workers=workers,
            multiprocessing_context=_server() if workers else None,
            worker_init_fn=_end_with_parent,
            pin_memory=self.device.type == "cuda",
            generator=make_generator("workers"),  # else it takes a number from the global stream
        )
        for indices, x, unreadable in _losing_workers(decoded):
            self.unreadable.update(unreadable.tolist())
            if not len(x) and self.training:
                path = self.folder.path(int(unreadable[0]))
                raise DataError(f"none of the {len(unreadable)} images of a batch can be read, such as {path}")
            if len(x):
                yield self._put(indices), self._put(x), self._put(self.folder.y[indices])

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


class _Decoded(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Batches by number: indices (B,), bytes (B, 3, H, W), and the indices of those that cannot be read."""

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
        except Exception:  # PIL raises many kinds on damaged files
            return None
        if self.seed is None:
            return center_crop(image, folder.test_size or folder.size, folder.crop_fraction, folder.interpolation)
        return random_crop(
            image, folder.size, make_generator("crop", self.seed, self.epoch, index), folder.interpolation
        )


def _losing_workers(decoded: Iterable[Any]) -> Iterator[Any]:
    """The same; a sentence where a worker is gone, killed for memory mostly, or cannot hand over what it decoded."""
    try:
        yield from decoded
    except (RuntimeError, OSError, EOFError) as error:
        if isinstance(error, RuntimeError) and not GONE.search(str(error)):
            raise
        raise DataError(
            f"lost a process that decodes images ({error_message(error)[:150]}); memory or shared memory (/dev/shm) "
            "may be short: use fewer data.workers, and the same command goes on from the last checkpoint"
        ) from error


def _next_readable(rows: list[int], unreadable: set[int]) -> list[int]:
    """The batch's indices, each unreadable one replaced by the next that is not, going round.

    Example:
        >>> _next_readable([4, 7, 1, 9], {7, 9})
        [4, 1, 1, 4]
    """
    good = next(row for row in rows if row not in unreadable)  # what follows the last
    kept = []
    for row in reversed(rows):
        good = good if row in unreadable else row
        kept.append(good)
    return kept[::-1]


def _end_with_parent(worker: int) -> None:
    """A worker's parent is the server, which lives as long as a worker: without this, both outlive a killed run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _server() -> Any:
    """What workers are forked from: a process without threads, because a fork of ours could wait for them for ever.

    It has imported this module, so that a worker is there at once. Ctrl-C, a polite kill of all processes together and
    a closed terminal are not for it and its workers: the main process saves first, and needs them for that. It imports
    nothing from the current folder, unless this process does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    with _safe_path():
        resource_tracker.ensure_running()  # else the server starts it, which unblocks these signals
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)  # it inherits this
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Python's processes that are started here do not have the current folder on their sys.path by themselves."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before

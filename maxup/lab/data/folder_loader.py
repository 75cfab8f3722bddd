"""Load batches of image files. Worker processes decode and crop; the main process copies to the device."""

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

# Messages of torch about a dead worker or a lack of shared memory. These errors have no type of their own.
WORKER_DIED = re.compile(r"DataLoader worker \(pid|Pin memory thread exited|shared memory|\bshm\b")


class FolderLoader(Loader):
    """A loader of image files.

    In training, the crop of an image depends only on (seed, epoch, index). The number of workers changes nothing, and
    a resumed run sees the same crops.

    `unreadable` collects the indices of files that cannot be read. In training, the next readable image of the batch
    replaces such a file, so that batches keep their size. In evaluation, it is left out.

    Args:
        batch_size: Images per batch and rank.
        training: Random crops in random order, with equal batches on all ranks. Otherwise center crops in order, each
            image exactly once.
        options: Options of `Loader`: seed, drop_last, rank, world_size.
    """

    def __init__(
        self, folder: Folder, batch_size: int, *, device: torch.device | str, training: bool, **options: Any
    ) -> None:
        super().__init__(len(folder), batch_size, shuffle=training, pad=training, **options)
        self.folder, self.device, self.training = folder, torch.device(device), training
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
        workers = min(self.folder.workers, len(os.sched_getaffinity(0)), len(rows))
        decoded = DataLoader(
            _Decoded(self.folder, [part.numpy() for part in rows], seed, self.epoch),
            batch_size=None,  # an item is already a batch
            num_workers=workers,
            multiprocessing_context=_server() if workers else None,
            worker_init_fn=_end_with_parent,
            pin_memory=self.device.type == "cuda",
            generator=make_generator("workers"),  # otherwise it draws from the global stream
        )
        for indices, x, unreadable in _catch_dead_workers(decoded):
            self.unreadable.update(unreadable.tolist())
            if not len(x) and self.training:
                path = self.folder.path(int(unreadable[0]))
                raise DataError(f"none of the {len(unreadable)} images of a batch can be read, for example {path}")
            if len(x):
                yield self._to_device(indices), self._to_device(x), self._to_device(self.folder.y[indices])

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


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


def _catch_dead_workers(decoded: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches. Raise a DataError if a worker was killed, usually for lack of memory or shared memory."""
    try:
        yield from decoded
    except (RuntimeError, OSError, EOFError) as error:
        if isinstance(error, RuntimeError) and not WORKER_DIED.search(str(error)):
            raise
        raise DataError(
            f"a worker process that decodes images died ({error_message(error)[:150]}), perhaps for lack of memory or "
            "shared memory (/dev/shm); use fewer data.workers, and the same command resumes from the last checkpoint"
        ) from error


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


def _end_with_parent(worker: int) -> None:
    """End a worker when the main process dies. Its parent is the fork server, which lives as long as its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _server() -> Any:
    """Start the server that forks the workers, and return its multiprocessing context.

    The server has no threads, so a fork cannot deadlock. It has already imported this module, so workers start fast.
    The server and its workers ignore SIGINT, SIGTERM and SIGHUP: the main process handles them and saves first. They
    import nothing from the current folder, unless this process does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    with _safe_path():
        resource_tracker.ensure_running()  # otherwise the server starts it, which unblocks these signals
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # the server inherits the mask
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start Python processes without the current folder on sys.path."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before

"""Worker processes that read the batches of a data set."""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from maxup.errors import DataError, error_message
from maxup.rng import make_generator

# Messages of torch about a dead worker or a lack of shared memory. They are plain RuntimeErrors.
WORKER_DIED = re.compile(r"DataLoader worker \(pid|Pin memory thread exited|shared memory|\bshm\b")
PRELOAD = ["maxup.lab.data.folder_loader", "maxup.lab.data.stream"]


def batches_from_workers(batches: Dataset[Any], workers: int, device: torch.device) -> Iterator[Any]:
    """Yield the items of a map-style data set, each of which is a batch, in order.

    Args:
        batches: The data set. It is sent to the workers by pickle.
        workers: Number of worker processes, at most one per core and batch. 0 reads in this process.
        device: Device of the training. Batches for a GPU are pinned.

    Raises:
        DataError: A worker was killed, usually for lack of memory or shared memory.
    """
    count = len(batches)  # type: ignore[arg-type]
    workers = min(workers, len(os.sched_getaffinity(0)), count)
    loader = DataLoader(
        batches,
        batch_size=None,  # an item is already a batch
        num_workers=workers,
        multiprocessing_context=_server() if workers else None,
        worker_init_fn=_end_with_parent,
        pin_memory=device.type == "cuda",
        generator=make_generator("workers"),  # otherwise it draws from the global stream
    )
    return _catch_dead_workers(loader)


def _catch_dead_workers(decoded: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches. Raise a DataError if a worker was killed, usually for lack of memory or shared memory."""
    try:
        yield from decoded
    except (RuntimeError, OSError, EOFError) as error:
        if isinstance(error, RuntimeError) and not WORKER_DIED.search(str(error)):
            raise
        raise DataError(
            f"a worker process that reads the data died ({error_message(error)[:150]}), perhaps for lack of memory or "
            'shared memory (/dev/shm), or because a script has no if __name__ == "__main__" around maxup.train; use '
            "fewer data.workers or 0, or add it, and the same command resumes from the last checkpoint"
        ) from error


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

    The server has no threads, so a fork cannot deadlock. It has already imported the loaders, so workers start fast.
    The server and its workers ignore SIGINT, SIGTERM and SIGHUP: the main process handles them and saves first. They
    import nothing from the current folder, unless this process does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
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

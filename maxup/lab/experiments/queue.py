"""A queue of trainings, each in its own process, spread over devices. It can be killed and restarted at any time.

The process of a training holds a lock on its folder until it ends; it inherits the lock from the queue, so
the lock survives the queue. If the queue is killed, its trainings continue, and the next queue does not repeat them.

Several queues, on one machine or on several that share the folder, divide the tasks: a queue skips a task that another
process holds, starts the next one, and returns to the skipped ones until each has a result.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from maxup.errors import InterruptedQueueError
from maxup.lab.storage.atomic_io import check_regular

LOG = "train.log"
LOCK = ".queue"


@dataclass(frozen=True)
class Task:
    """A command that writes into a folder."""

    name: str
    command: list[str]
    folder: Path
    finish: Callable[[], bool]
    """Save the result if it exists. Returns whether it exists."""


@dataclass(frozen=True)
class Failure:
    """A task that ended without a result."""

    name: str
    why: str
    last_lines: list[str]


@dataclass
class _Worker:
    """A device and its current task."""

    device: str | None
    task: Task | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    signals: int = 0
    """Number of stop signals sent to the process."""
    log_start: int = 0


@dataclass
class _Progress:
    total: int
    say: Callable[[str], None]
    ended: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    def skip(self, task: Task) -> None:
        """Say once that another process has the task."""
        if task.name not in self.skipped:
            self.say(f"{task.name}: another process is working on it")
            self.skipped.add(task.name)

    def end(self, task: Task, how: str) -> None:
        self.ended += 1
        self.say(f"[{self.ended}/{self.total}] {task.name}: {how}")

    def fail(self, task: Task, why: str, last_lines: list[str]) -> None:
        self.failures.append(Failure(task.name, why, last_lines))
        self.end(task, why)


def run_queue(
    tasks: Sequence[Task], devices: Sequence[str | None], *, say: Callable[[str], None] = print, poll: float = 0.1
) -> list[Failure]:
    """Run all tasks, one at a time per device. A failed task does not stop the others.

    Args:
        tasks: The tasks, in order.
        devices: Value of CUDA_VISIBLE_DEVICES per worker. None leaves it unchanged.
        say: Called with one line per event.
        poll: Seconds between checks of the processes.

    Returns:
        The tasks that failed.
    """
    waiting, workers, progress = list(tasks), [_Worker(device) for device in devices], _Progress(len(tasks), say)
    scan_at = 0.0  # time to try the waiting tasks again
    with _requests() as requests:
        while True:
            for worker in workers:
                if worker.task is not None:
                    _update(worker, progress, len(requests))
                if worker.task is None and not requests and time.monotonic() >= scan_at:
                    _take(worker, waiting, progress)
                    if worker.task is None:  # others hold all of them
                        scan_at = time.monotonic() + 10 * poll
            if not any(worker.task for worker in workers) and (requests or not waiting):
                break
            time.sleep(poll)
    if requests and progress.ended < progress.total:
        raise InterruptedQueueError(f"stopped with {progress.ended} of {progress.total} done; the same command resumes")
    return progress.failures


def visible_devices() -> list[str | None]:
    """Return one value of CUDA_VISIBLE_DEVICES per visible GPU, or [None] without a GPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named == "":
        return [None]
    import torch

    count = torch.cuda.device_count()
    return [*(named.split(",") if named else map(str, range(count)))][:count] or [None]


def last_lines(log: Path, start: int = 0) -> list[str]:
    """Return the last 5 non-empty lines after the byte offset `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip()[:2000] for line in text.splitlines() if line.strip()][-5:]


def _take(worker: _Worker, waiting: list[Task], progress: _Progress) -> None:
    """Start the first waiting task that no other process holds. Tasks that start or end leave `waiting`."""
    for task in tuple(waiting):
        try:
            if not _start(worker, task, progress):
                progress.skip(task)
                continue
        except (OSError, ValueError) as error:
            progress.fail(task, f"failed: {error}", [])
        waiting.remove(task)
        if worker.task is not None:
            break


def _update(worker: _Worker, progress: _Progress, requests: int) -> None:
    """Check whether the task of a worker has ended, or forward a stop signal."""
    assert worker.task is not None
    assert worker.process is not None
    try:
        if (code := worker.process.poll()) is not None:
            _end(worker, worker.task, code, progress, stopping=requests > 0)
        elif worker.signals < requests:
            worker.process.send_signal(signal.SIGINT)
            progress.say(f"{worker.task.name}: " + ("stopping now" if worker.signals else "saving and stopping"))
            worker.signals += 1
    except (OSError, ValueError) as error:
        if worker.task is not None:
            progress.fail(worker.task, f"failed: {error}", [])
        worker.task = None


def _end(worker: _Worker, task: Task, code: int, progress: _Progress, *, stopping: bool) -> None:
    log = task.folder / LOG
    if code == 0 and task.finish():
        progress.end(task, f"done in {time.monotonic() - worker.started:.0f} s")
    elif not stopping:
        why = f"failed with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        why = "exited with code 0, but without a result" if code == 0 else why
        progress.fail(task, f"{why}; see {log}", last_lines(log, worker.log_start))
    worker.task = None


def _start(worker: _Worker, task: Task, progress: _Progress) -> bool:
    """Start a task, or end it if its result exists. Returns False if another process holds the lock of the task."""
    task.folder.mkdir(parents=True, exist_ok=True)
    for name in (LOCK, LOG):
        check_regular(task.folder / name)
    lock = os.open(task.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if task.finish():  # finished by another queue, or by a task of a killed one
            progress.end(task, "already done")
            return True
        with (task.folder / LOG).open("ab") as log:
            worker.log_start = log.tell()
            environment = os.environ | ({} if worker.device is None else {"CUDA_VISIBLE_DEVICES": worker.device})
            worker.process = subprocess.Popen(
                task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                pass_fds=[lock], start_new_session=True,  # Ctrl-C reaches it once, through the queue
            )  # fmt: skip
        worker.task, worker.started, worker.signals = task, time.monotonic(), 0
        progress.say(f"{task.name}: started" + ("" if worker.device is None else f" on GPU {worker.device}"))
        return True
    finally:
        os.close(lock)  # the child process keeps its copy


@contextmanager
def _requests() -> Iterator[list[int]]:
    """Yield a list that grows with every SIGINT, SIGTERM and SIGHUP."""
    requests: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    kept = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {n: signal.signal(n, lambda number, frame: requests.append(number)) for n in kept}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A queue of trainings, each in its own process, spread over devices. It can be killed and restarted at any time.

The process of a training holds a lock on its folder for its whole life; it inherits the lock from the queue. If the
queue is killed, its trainings continue, and the next queue waits for them instead of repeating their work.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections import deque
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
class _Slot:
    """A device and its current task."""

    device: str | None
    task: Task | None = None
    process: subprocess.Popen[bytes] | None = None
    """None while another process works on the task."""
    started: float = 0.0
    waited: bool = False
    signals: int = 0
    """Number of stop signals sent to the process."""
    log_start: int = 0


@dataclass
class _Tally:
    total: int
    say: Callable[[str], None]
    ended: int = 0
    failures: list[Failure] = field(default_factory=list)

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

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "result")
        ...     run_queue([Task("a", ["touch", str(file)], Path(folder), file.exists)], [None], say=lambda line: None)
        []
    """
    waiting, slots, tally = deque(tasks), [_Slot(device) for device in devices], _Tally(len(tasks), say)
    with _requests() as requests:
        while True:
            for i, slot in enumerate(slots):
                if slot.task is None and waiting and not requests:
                    slots[i] = slot = _Slot(slot.device, waiting.popleft())
                _update(slot, tally, len(requests))
            working = sum(slot.task is not None for slot in slots)
            if not working and (requests or not waiting):
                break
            if working == len(slots) or requests or not waiting:
                time.sleep(poll)
    if requests and tally.ended < tally.total:
        raise InterruptedQueueError(f"stopped with {tally.ended} of {tally.total} done; the same command resumes")
    return tally.failures


def visible_devices() -> list[str | None]:
    """Return one value of CUDA_VISIBLE_DEVICES per visible GPU, or [None] without a GPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named == "":
        return [None]
    import torch

    count = torch.cuda.device_count()
    return [*(named.split(",") if named else map(str, range(count)))][:count] or [None]


def last_lines(log: Path, start: int = 0, count: int = 5) -> list[str]:
    """Return the last non-empty lines after the byte offset `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip()[:2000] for line in text.splitlines() if line.strip()][-count:]


def _update(slot: _Slot, tally: _Tally, requests: int) -> None:
    """Start the task of a slot, check whether it has ended, or forward a stop signal."""
    if slot.task is None:
        return
    try:
        if slot.process is None and requests:
            slot.task = None
        elif slot.process is None:
            _start(slot, slot.task, tally)
        elif (code := slot.process.poll()) is not None:
            _end(slot, slot.task, code, tally, stopping=requests > 0)
        elif slot.signals < requests:
            slot.process.send_signal(signal.SIGINT)
            tally.say(f"{slot.task.name}: " + ("stopping now" if slot.signals else "saving and stopping"))
            slot.signals += 1
    except (OSError, ValueError) as error:
        if slot.task is not None:
            tally.fail(slot.task, f"failed: {error}", [])
        slot.task = None


def _end(slot: _Slot, task: Task, code: int, tally: _Tally, *, stopping: bool) -> None:
    log = task.folder / LOG
    if code == 0 and task.finish():
        tally.end(task, f"done in {time.monotonic() - slot.started:.0f} s")
    elif not stopping:
        why = f"failed with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        why = "exited with code 0, but without a result" if code == 0 else why
        tally.fail(task, f"{why}; see {log}", last_lines(log, slot.log_start))
    slot.task = None


def _start(slot: _Slot, task: Task, tally: _Tally) -> None:
    task.folder.mkdir(parents=True, exist_ok=True)
    for name in (LOCK, LOG):
        check_regular(task.folder / name)
    lock = os.open(task.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not slot.waited:
                tally.say(f"{task.name}: waiting for another process that works on it")
                slot.waited = True
            return
        if task.finish():  # by the process waited for, or by a queue that was killed
            tally.end(task, "already done")
            slot.task = None
            return
        with (task.folder / LOG).open("ab") as log:
            slot.log_start = log.tell()
            environment = os.environ | ({} if slot.device is None else {"CUDA_VISIBLE_DEVICES": slot.device})
            slot.process = subprocess.Popen(
                task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                pass_fds=[lock], start_new_session=True,  # Ctrl-C reaches it once, through the queue
            )  # fmt: skip
        tally.say(f"{task.name}: started" + ("" if slot.device is None else f" on GPU {slot.device}"))
        slot.started = time.monotonic()
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

"""How a run ends before its last step: asked to, or unable to go on; in a sentence in either case."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import DistError

from maxup.errors import InterruptedRunError, RunError, error_message

# What backends say where a peer is gone: gloo's errors have no type of their own.
GONE = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)
PATIENCE = 5.0  # seconds that a step may go on after the run was asked to stop


@contextmanager
def losing_peers(processes: int, folder: Path) -> Iterator[None]:
    """Turn a collective that fails because another process died into a sentence.

    Args:
        processes: How many there are; with one, nothing is changed.
        folder: The run's.
    """
    try:
        yield
    except RuntimeError as error:
        gone = isinstance(error, DistError) or GONE.search(str(error))
        if processes == 1 or isinstance(error, RunError) or not gone:
            raise
        raise RunError(
            f"lost another process of this run ({error_message(error)[:150]}); the same command goes on from the last "
            f"checkpoint in {folder}"
        ) from error


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, a polite kill and a closed terminal into a question asked between steps; a second Ctrl-C insists.

    A terminal that closes may say so twice, once itself and once by its shell, which is no insisting; nohup ignores it.

    Example:
        >>> with asked_to_stop() as asked:
        ...     before = asked()
        ...     signal.raise_signal(signal.SIGTERM)
        ...     before, asked()
        (False, True)
    """
    requests: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    terminals = [output for output in (1, 2) if os.isatty(output)]

    def note(number: int, frame: Any) -> None:
        requests.append(number)
        if number == signal.SIGHUP:
            _write_nowhere([output for output in terminals if not os.isatty(output)])
        elif len(requests) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interruptible(call: Callable[..., Any], asked: Callable[[], bool], folder: Path) -> Callable[..., Any]:
    """A function that a step calls once per copy, such as the forward pass, as one that can end the step.

    Once asked to stop, a step has `PATIENCE` seconds to finish, and the run is saved after it. A longer step is dropped
    at the next call: nothing of it is applied, and the run resumes from its last checkpoint.

    Args:
        call: The function.
        asked: Whether the run was asked to stop.
        folder: The run's.

    Example:
        >>> interruptible(max, lambda: False, Path("run"))(3, 4)
        4
    """
    since: float | None = None

    def called(*args: Any) -> Any:
        nonlocal since
        if asked():
            since = time.monotonic() if since is None else since
            if time.monotonic() - since >= PATIENCE:
                raise InterruptedRunError(
                    f"stopped in the middle of a long step, which is dropped; the same command resumes from the last "
                    f"checkpoint in {folder}"
                )
        return call(*args)

    return called


def _write_nowhere(outputs: list[int]) -> None:
    """Where a terminal is gone, showing progress would fail before anything is saved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in outputs:
        os.dup2(nowhere, output)
    os.close(nowhere)

"""Stop a run early: on a signal, or when another rank dies."""

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

# Messages of backends when a peer is gone. Gloo raises plain RuntimeErrors.
GONE = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)
PATIENCE = 5.0  # seconds that a step may take to finish after a stop request


@contextmanager
def report_lost_peers(processes: int, folder: Path) -> Iterator[None]:
    """Turn the error of a collective into a RunError if it fails because another process died."""
    try:
        yield
    except RuntimeError as error:
        gone = isinstance(error, DistError) or GONE.search(str(error))
        if processes == 1 or isinstance(error, RunError) or not gone:
            raise
        raise RunError(
            f"lost another process of this run ({error_message(error)[:150]}); the same command resumes from the last "
            f"checkpoint in {folder}"
        ) from error


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Return a function that is True after Ctrl-C, SIGTERM or a closed terminal. A second Ctrl-C interrupts at once.

    A closed terminal may send SIGHUP twice, which counts once. Under nohup it is ignored. Under torchrun a second
    SIGTERM counts once too: a scheduler such as SLURM sends it to every process, and torchrun passes its own on.
    """
    requests: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    terminals = [output for output in (1, 2) if os.isatty(output)]

    def note(number: int, frame: Any) -> None:
        requests.append(number)
        if number == signal.SIGHUP:
            _discard_output([output for output in terminals if not os.isatty(output)])
        elif len(requests) > 1 and not (number == signal.SIGTERM and "TORCHELASTIC_RUN_ID" in os.environ):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interruptible(call: Callable[..., Any], should_stop: Callable[[], bool], folder: Path) -> Callable[..., Any]:
    """Wrap a function that each copy calls, such as forward, so that a long step can be interrupted there.

    After a stop request, a step has `PATIENCE` seconds to finish; then the run is saved. A longer step is abandoned at
    the next call: the weights do not change, and the run resumes from its last checkpoint.
    """
    since: float | None = None

    def called(*args: Any) -> Any:
        nonlocal since
        if should_stop():
            since = time.monotonic() if since is None else since
            if time.monotonic() - since >= PATIENCE:
                raise InterruptedRunError(
                    f"stopped in the middle of a long step, which is abandoned; the same command resumes from the last "
                    f"checkpoint in {folder}"
                )
        return call(*args)

    return called


def _discard_output(outputs: list[int]) -> None:
    """Send outputs to /dev/null: printing to a closed terminal would fail before the run is saved."""
    null = os.open(os.devnull, os.O_WRONLY)
    for output in outputs:
        os.dup2(null, output)
    os.close(null)

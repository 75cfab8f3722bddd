"""How a run ends before its last step: asked to, or unable to go on; in a sentence in either case."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import DistError

from maxup.sentences import reason

# What backends say where a peer is gone: gloo's errors have no type of their own.
GONE = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)


class RunError(RuntimeError):
    """A run that cannot go on, in one sentence."""


class InterruptedRunError(RunError):
    """Asked to stop; the state is saved."""


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
            f"lost another process of this run ({reason(error)[:150]}); the same command goes on from the last "
            f"checkpoint in {folder}"
        ) from error


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and a polite kill into a question that can be asked between steps; a second Ctrl-C insists.

    Example:
        >>> with asked_to_stop() as asked:
        ...     before = asked()
        ...     signal.raise_signal(signal.SIGTERM)
        ...     before, asked()
        (False, True)
    """
    requests: list[int] = []

    def note(number: int, frame: Any) -> None:
        requests.append(number)
        if len(requests) > 1:
            raise KeyboardInterrupt

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

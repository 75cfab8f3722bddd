"""How a run ends before its last step: asked to, or unable to go on; in a sentence in either case."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class RunError(RuntimeError):
    """A run that cannot go on, in one sentence."""


class InterruptedRunError(RunError):
    """Asked to stop; the state is saved."""


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

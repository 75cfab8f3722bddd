"""The paper's start: the first epochs with standard augmentation."""

from collections.abc import Callable
from functools import partial

from maxup.validate import check_whole


def warmup(m: int, *, steps: int) -> Callable[[int], int]:
    """A schedule for `MaxUp(..., m=warmup(4, steps=...))`: one copy for the first steps, m copies from then on.

    The paper trains from scratch with 5 epochs at m = 1: `steps=5 * len(loader)`.

    Example:
        >>> m = warmup(4, steps=100)
        >>> m(0), m(99), m(100)
        (1, 1, 4)
    """
    check_whole("m", m)
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"warmup(steps={steps!r}): steps must be a whole number, 0 or more")
    return partial(_copies, m=m, steps=steps)


def _copies(step: int, *, m: int, steps: int) -> int:
    return 1 if step < steps else m

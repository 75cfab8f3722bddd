"""The paper's warmup: standard augmentation in the first epochs."""

from collections.abc import Callable
from functools import partial
from numbers import Integral

from maxup.errors import format_value
from maxup.validate import check_positive_int


def warmup(m: int, *, steps: int) -> Callable[[int], int]:
    """Return a schedule for `MaxUp(..., m=warmup(4, steps=...))`: one copy for the first steps, then m copies.

    When training from scratch, the paper uses m = 1 for 5 epochs: `steps=5 * len(loader)`.

    Example:
        >>> m = warmup(4, steps=100)
        >>> m(0), m(99), m(100)
        (1, 1, 4)
    """
    check_positive_int("m", m)
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"warmup(steps={format_value(steps)}): steps must be a whole number, 0 or more")
    return partial(_copies, m=m, steps=int(steps))


def _copies(step: int, *, m: int, steps: int) -> int:
    return 1 if step < steps else m

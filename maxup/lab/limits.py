"""The valid range of every number in recipes and command-line options.

The type annotation of a setting or an argument holds its limit, as in `Annotated[int, MANY]`. Limits catch mistakes
and malicious files before they take a day or all memory. They do not apply to the library: `MaxUp(m=...)` takes any m.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, get_args

from maxup.errors import RecipeError, format_value


@dataclass(frozen=True)
class Limit:
    """The numbers from `low` to `high`.

    Example:
        >>> str(Limit(2, 100, whole=True)), str(Limit(0, 1, above=True))
        ('a whole number from 2 to 100', 'a number above 0 and at most 1')
        >>> 1 in Limit(0, 1), 0 in Limit(0, 1, above=True), math.nan in Limit(0, 1), 1.5 in Limit(1, 2, whole=True)
        (True, False, False, False)
    """

    low: float
    high: float
    whole: bool = False
    """Whether only whole numbers are valid."""
    above: bool = False
    """Whether `low` itself is excluded."""
    below: bool = False
    """Whether `high` itself is excluded."""

    def __contains__(self, value: object) -> bool:
        is_number = isinstance(value, Integral if self.whole else Real) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:  # type: ignore[operator]
            return False
        return not (self.above and value == self.low) and not (self.below and value == self.high)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if math.isinf(self.high):
            return f"{kind}, {_plain(self.low)} or more"
        if self.above or self.below:
            first = f"above {_plain(self.low)}" if self.above else f"that is at least {_plain(self.low)}"
            return f"{kind} {first} and {'below' if self.below else 'at most'} {_plain(self.high)}"
        return f"{kind} from {_plain(self.low)} to {_plain(self.high)}"


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _count(low: int, high: int) -> Limit:
    return Limit(low, high, whole=True)


COPIES, STEPS, MANY, SIZE = _count(1, 10**4), _count(1, 10**4), _count(1, 10**6), _count(1, 10**5)
SEED = _count(0, 4 * 10**9)  # numpy takes 32 bits, and every process adds its rank
FRACTION, DROP = Limit(0, 1), Limit(0, 1, below=True)  # of dropout
DEPTH, WIDTH = _count(1, 2000), _count(1, 10**4)  # of networks
OPTIONS = {  # by command and option
    "train --save_every": Limit(0, math.inf),  # inf: save only at the best and the last epoch
    "compare --seeds": _count(2, 10**4),  # a standard deviation needs 2
    "compare --m": COPIES,
    "compare --radius": Limit(0, 1e9),
    "compare --attack_steps": STEPS,
    "compare --images": _count(2, 10**9),  # CutMix and MixUp need pairs
    "compare --certify": _count(1, 10**9),
    "compare --certify_n": _count(100, 10**8),  # at least n0
    "compare --certify_sigma": Limit(0, 1e6, above=True),
    "bench --m": _count(2, 10**4),  # m = 1 is the standard step
    "bench --batch_size": MANY,
    "bench --rounds": MANY,
    "bench --train_steps": _count(0, 10**6),
    "bench --num_classes": MANY,
    "reproduce --seeds": _count(1, 10**4),
    "reproduce --budget": Limit(0, 1, above=True),
    "certify --sigma": Limit(0, 1e6, above=True),
    "certify --n0": _count(1, 10**8),
    "certify --n": _count(1, 10**8),
    "certify --alpha": Limit(1e-100, 0.999),
    "certify --batch": MANY,
    "certify --seed": SEED,
    "certify --radii": Limit(0, 1e6),
    "certify --skip": _count(1, 10**9),
    "certify --max": _count(1, 10**9),
    "certify --attack": Limit(0, 1e6, above=True),
    "certify --image": _count(0, 10**9),
    "eval --images": _count(1, 10**9),
    "sample --words": MANY,
    "sample --temperature": Limit(0, 1e6),
    "sample --seed": SEED,
    "show --images": _count(1, 64),  # more would be too small to see
    "show --m": _count(2, 64),
    "show --batch": _count(0, 10**9),
}
MAX_VALUES = 100  # in a list of a recipe, a table, or a command-line option
MAX_NODES = 10**4  # values, lists and mappings in a document
MAX_BASES = 20  # length of a chain of `base:` recipes
MAX_VOCABULARY = 2**20  # token ids; the largest tokenizers have about 260,000


def option(name: str) -> Callable[[str], Any]:
    """Return the argparse `type` of an option in `OPTIONS`.

    Example:
        >>> option("compare --m")("8")
        8
    """
    limit = OPTIONS[name]

    def parse(text: str) -> float:
        try:
            value = int(text) if limit.whole else float(text)
        except ValueError:
            value = math.nan
        if value not in limit:
            raise argparse.ArgumentTypeError(f"must be {limit}, but is {text!r:.60}")
        return value

    return parse


def check_range(name: str, value: Any, hint: Any) -> None:
    """Raise a RecipeError if a number, or a number in a list, is outside the limit in its type annotation.

    Example:
        >>> from typing import Annotated
        >>> check_range("optim.milestones", [0.5, 75], list[Annotated[float, FRACTION]])
        Traceback (most recent call last):
        maxup.errors.RecipeError: optim.milestones=75 is out of range; it must be a number from 0 to 1
    """
    limit = find_limit(hint)
    if limit is None or value is None:
        return
    numbers = value if isinstance(value, list | tuple) else [value]
    if invalid := [number for number in numbers if number not in limit]:
        allowed = " or ".join(f"{one:g}" for one in limit) if isinstance(limit, tuple) else limit
        raise RecipeError(f"{name}={format_value(invalid[0])} is out of range; it must be {allowed}")
    if len(numbers) > MAX_VALUES:
        raise RecipeError(f"{name} has {len(numbers)} numbers; it must have at most {MAX_VALUES}")


def find_limit(hint: Any) -> Limit | tuple[float, ...] | None:
    """Return the limit in a type annotation, or the tuple of valid numbers.

    Example:
        >>> from typing import Annotated
        >>> str(find_limit(list[Annotated[float, Limit(0, 9)]] | None)), find_limit(Annotated[float, (2.0, math.inf)])
        ('a number from 0 to 9', (2.0, inf))
    """
    if isinstance(hint, Limit | tuple):
        return hint
    return next((limit for part in get_args(hint) if (limit := find_limit(part))), None)

"""The valid range of every number in recipes and command-line options.

The limits catch mistakes and malicious files before they take a day or all memory. They do not apply to the library:
`MaxUp(m=...)` takes any m.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from maxup.errors import format_value


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


COPIES, STEPS, MANY, SEED = _count(1, 10**4), _count(1, 10**4), _count(1, 10**6), _count(0, 4 * 10**9)
FRACTION, DROP = Limit(0, 1), Limit(0, 1, below=True)

RECIPE = {  # by dotted name; a limit applies to every number of a list
    "epochs": MANY,
    "batch_size": MANY,
    "seed": SEED,  # numpy takes 32 bits, and every process adds its rank
    "data.train_size": _count(1, 10**9),
    "data.validation": Limit(0, 0.9),
    "data.size": _count(1, 10**4),
    "data.test_size": _count(1, 10**4),
    "data.crop_fraction": Limit(0.1, 1),
    "data.mean": Limit(-1e6, 1e6),
    "data.std": Limit(0, 1e6, above=True),
    "data.workers": _count(0, 10**3),
    "optim.lr": Limit(0, 1e9),
    "optim.momentum": FRACTION,
    "optim.weight_decay": Limit(0, 1e3),
    "optim.milestones": FRACTION,
    "optim.gamma": Limit(0, 1e3),
    "optim.warmup": FRACTION,
    "optim.clip": Limit(0, 1e9, above=True),
    "optim.accumulate": MANY,
    "optim.sam": Limit(0, 1e3),
    "optim.ema": Limit(0, 0.999999, above=True),
    "optim.average_from": FRACTION,
    "optim.patience": MANY,
    "optim.restarts": _count(0, 100),
    "language.bptt": MANY,
    "language.epsilon": Limit(0, 1e3),
    "language.alpha": Limit(0, 1e6),
    "language.beta": Limit(0, 1e6),
    "language.validation_columns": MANY,
    "language.test_columns": MANY,
}
MODEL = {  # by argument name
    "depth": _count(1, 2000),
    "width": _count(1, 10**4),
    "hidden": _count(1, 10**5),
    "embedding": _count(1, 10**5),
    "layers": _count(1, 100),
    "dropout": DROP,
    "input_dropout": DROP,
    "hidden_dropout": DROP,
    "output_dropout": DROP,
    "weight_drop": DROP,
    "noise": Limit(0, 1e6),
    "drop_rate": DROP,
    "drop_path_rate": DROP,
    "drop_block_rate": DROP,
}
OPTIONS = {  # by command and option
    "train --save_every": Limit(0, math.inf),  # inf: save only at the best and the last epoch
    "compare --seeds": _count(2, 10**4),  # a standard deviation needs 2
    "compare --m": COPIES,
    "compare --radius": Limit(0, 1e9),
    "compare --attack_steps": STEPS,
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


def check_recipe(values: Mapping[str, Any]) -> str | None:
    """Return an error message for the first setting that is out of range, or None. `values` are by dotted name.

    Example:
        >>> check_recipe({"epochs": 0})
        'epochs=0 is out of range; it must be a whole number from 1 to 1000000'
    """
    for name, limit in RECIPE.items():
        value = values.get(name)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if invalid := [number for number in numbers if number not in limit]:
            return f"{name}={format_value(invalid[0])} is out of range; it must be {limit}"
        if len(numbers) > MAX_VALUES:
            return f"{name} has {len(numbers)} numbers; it must have at most {MAX_VALUES}"
    return None


def check_model_args(**arguments: Any) -> None:
    """Raise a ValueError if an argument of a network is out of range.

    Example:
        >>> check_model_args(width=16, dropout=math.nan)
        Traceback (most recent call last):
        ValueError: dropout=nan is out of range; it must be a number that is at least 0 and below 1
    """
    for name, value in arguments.items():
        if value not in MODEL[name]:
            raise ValueError(f"{name}={format_value(value)} is out of range; it must be {MODEL[name]}")

"""Arguments of perturbations, which a recipe may give as anything: one sentence about what is no number, or no fit."""

import math
from numbers import Integral, Real
from typing import Any

from maxup.lab.limits import shown

LARGEST = 3.4e38  # of float32, nearly
MANY = 10**6
ABOVE_0, BELOW_1 = math.ulp(0.0), math.nextafter(1.0, 0.0)  # bounds that leave 0, and 1, out


def real(who: str, name: str, value: Any, wanted: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """A number between two others, or a sentence with what is wanted instead.

    Example:
        >>> real("Affine", "degrees", "ten", "between 0 and 180", 0, 180)
        Traceback (most recent call last):
        ValueError: Affine(degrees='ten'): degrees must be between 0 and 180
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not max(low, -LARGEST) <= value <= min(high, LARGEST):
        raise ValueError(f"{who}({name}={shown(value)}): {name} must be {wanted}")
    return float(value)


def whole(who: str, name: str, value: Any, low: int, unit: str = "") -> int:
    """A whole number, at least `low` and at most a million.

    Example:
        >>> whole("Cutout", "length", 8, 1, " of pixels")
        8
    """
    number = isinstance(value, Integral) and not isinstance(value, bool)  # numpy's too
    if not number or not low <= value <= MANY:
        most = f"{low} to {MANY}" if number and value > MANY else f"{low} or more"
        raise ValueError(f"{who}({name}={shown(value)}): {name} must be a whole number{unit}, {most}")
    return int(value)


def fill(who: str, value: Any) -> float:
    """The value of pixels that are filled in, the same in every channel."""
    return real(who, "fill", value, "a finite number, the same for all channels")


def mask_fill(who: str, value: Any) -> int:
    """The label of pixels in a mask that have no source."""
    return whole(who, "mask_fill", value, -MANY, " that your loss ignores")


def classes(who: str, value: Any) -> int | None:
    """A number of classes, or None where targets are probabilities, which know it."""
    return None if value is None else whole(who, "num_classes", value, 1)

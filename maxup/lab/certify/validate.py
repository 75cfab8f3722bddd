"""Checks of a certificates file: the settings in the header are valid, and the rows are possible with these settings.

The checks do not depend on the hashes. A row with a valid hash is still rejected if its values are impossible.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxup.smoothing.bounds import ABSTAIN
from maxup.smoothing.sampling import max_radius, plan
from maxup.smoothing.smooth import check_radii, check_sampling
from maxup.validate import check_choice

if TYPE_CHECKING:
    from maxup.lab.certify.tsv import Row

# Keys of the header that all rows of a file share.
SAME = ("model", "images", "sigma", "dtype", "forward", "n0", "n", "alpha", "sampling", "radii", "seed", "classes")
ROUNDING = 1e-6  # the last printed digit of a radius


def check_settings(header: dict[str, Any]) -> None:
    """Raise a ValueError if the header of a file has missing or invalid settings."""
    if missing := [key for key in SAME if key not in header]:
        raise ValueError(f"the header is missing {', '.join(missing)}")
    for key, value in header.items():
        if isinstance(value, int | float) and not abs(value) < 2**63:
            raise ValueError(f"{key}={str(value)[:20]}: {key} must be between -2**63 and 2**63")
    for key in ("model", "images", "dtype", "forward"):
        if not isinstance(header[key], str):
            raise ValueError(f"{key}={header[key]!r:.40}: {key} must be a string")
    for key, numbers, kind in (
        ("sigma", [header["sigma"]], "a number"),
        ("seed", [header["seed"]], "a number"),
        ("answers", header.get("answers"), "a list of numbers"),
    ):
        if numbers is not None and not (isinstance(numbers, list) and all(type(n) in (int, float) for n in numbers)):
            raise ValueError(f"{key}={header[key]!r:.40}: {key} must be {kind}")
    if type(header.get("asked", 0)) is not int or header.get("asked", 0) < 0:
        raise ValueError(f"asked={header['asked']!r:.40}: asked must be a number of images, 0 or more")
    if header["sigma"] <= 0:
        raise ValueError(f"sigma={header['sigma']:g}: sigma must be above 0")
    check_sampling(n0=header["n0"], n=header["n"], alpha=header["alpha"])
    check_choice("sampling", header["sampling"], "fixed", "adaptive")
    check_radii(header["radii"])
    if header["radii"] is not None and header["sampling"] == "fixed":
        raise ValueError("radii are given, but sampling is 'fixed'; radii need adaptive sampling")
    match header["classes"]:
        case [str(), str(), *more] if all(isinstance(name, str) for name in more):
            return
    raise ValueError("classes must be a list of at least two names")


@dataclass(frozen=True)
class Limits:
    """Limits of the values in a row."""

    classes: int
    reach: float
    """The largest possible radius."""
    samples: frozenset[int | None]
    """Numbers of samples at which sampling can stop."""

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> "Limits":
        """Compute the limits from a checked header."""
        looks = plan(header["n"], header["alpha"], early=header["sampling"] != "fixed")
        samples = frozenset({None} if header["sampling"] == "fixed" else {look.n for look in looks})
        return cls(len(header["classes"]), max_radius(looks, header["sigma"]), samples)

    def problem(self, row: "Row") -> str | None:
        """Return what is wrong with a row, or None."""
        if row.idx < 0:
            return f"idx={row.idx} is negative"
        if not 0 <= row.label < self.classes:
            return f"label={row.label}, but there are {self.classes} classes"
        if not ABSTAIN <= row.predict < self.classes:
            return f"predict={row.predict}, but there are {self.classes} classes"
        if row.correct != (row.predict == row.label):
            return f"correct={int(row.correct)} contradicts label={row.label} and predict={row.predict}"
        if row.predict == ABSTAIN and row.radius != 0:
            return f"it abstains, but radius={row.radius:g}"
        if not 0 <= row.radius < math.inf or row.radius > self.reach + ROUNDING:
            return f"radius={row.radius:g}, but n, alpha and sigma allow at most {self.reach:.6f}"
        if row.samples not in self.samples:
            return f"samples={row.samples} is not a possible stopping point"
        return None

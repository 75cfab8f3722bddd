"""What a file of certificates can say: settings that make sense, and rows within their limits.

This does not depend on the file's hashes: a row with the right hash is refused too if no certificate can look like it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxup.smoothing.bounds import ABSTAIN
from maxup.smoothing.sampling import plan, reach
from maxup.smoothing.smooth import check_radii, check_sampling
from maxup.validate import check_choice

if TYPE_CHECKING:
    from maxup.lab.certify.tsv import Row

# What all rows of a file have in common.
SAME = ("model", "images", "sigma", "dtype", "forward", "n0", "n", "alpha", "sampling", "radii", "seed", "classes")
ROUNDING = 1e-6  # the last digit of a radius


def check_settings(about: dict[str, Any]) -> None:
    """Refuse settings that nobody can have certified with: a ValueError says which.

    Example:
        >>> check_settings({"model": ""})
        Traceback (most recent call last):
        ValueError: it lacks images, sigma, dtype, forward, n0, n, alpha, sampling, radii, seed, classes
    """
    if missing := [key for key in SAME if key not in about]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    for key, value in about.items():
        if isinstance(value, int | float) and not abs(value) < 2**63:
            raise ValueError(f"its {key} is {str(value)[:20]}")
    for key in ("model", "images", "dtype", "forward"):
        if not isinstance(about[key], str):
            raise ValueError(f"{key}={about[key]!r:.40}: {key} must be text")
    for key, numbers in {"sigma": [about["sigma"]], "seed": [about["seed"]], "answers": about.get("answers")}.items():
        if numbers is not None and not (isinstance(numbers, list) and all(type(n) in (int, float) for n in numbers)):
            raise ValueError(f"{key}={about[key]!r:.40}: {key} must be a number, and answers a list of them")
    if type(about.get("asked", 0)) is not int or about.get("asked", 0) < 0:
        raise ValueError(f"asked={about['asked']!r:.40}: asked must be a number of images")
    if about["sigma"] <= 0:
        raise ValueError(f"sigma={about['sigma']:g}: sigma must be above 0")
    check_sampling(n0=about["n0"], n=about["n"], alpha=about["alpha"])
    check_choice("sampling", about["sampling"], "fixed", "adaptive")
    check_radii(about["radii"])
    if about["radii"] is not None and about["sampling"] == "fixed":
        raise ValueError("radii are of adaptive sampling, and its sampling is fixed")
    match about["classes"]:
        case [str(), str(), *more] if all(isinstance(name, str) for name in more):
            return
    raise ValueError("classes must be a list of two or more names")


@dataclass(frozen=True)
class Limits:
    """What a row of a file may hold.

    Example:
        >>> from maxup.lab.certify.tsv import Row
        >>> about = {"n": 1000, "alpha": 0.001, "sigma": 0.5, "sampling": "fixed", "classes": ["cat", "dog"]}
        >>> limits = Limits.of(about)
        >>> limits.complaint(Row(7, 1, 1, 1.2, True, "0:00:01"))
        >>> limits.complaint(Row(7, 1, 1, 2.75, True, "0:00:01"))
        'its radius is 2.75, and n, alpha and sigma allow 1.231631 at most'
    """

    classes: int
    reach: float
    """The largest radius."""
    samples: frozenset[int | None]

    @classmethod
    def of(cls, about: dict[str, Any]) -> "Limits":
        """Of settings that were checked."""
        looks = plan(about["n"], about["alpha"], early=about["sampling"] != "fixed")
        samples = frozenset({None} if about["sampling"] == "fixed" else {look.n for look in looks})
        return cls(len(about["classes"]), reach(looks, about["sigma"]), samples)

    def complaint(self, row: "Row") -> str | None:
        """Why a row cannot be a certificate, or None."""
        if row.idx < 0:
            return f"its idx is {row.idx}"
        if not 0 <= row.label < self.classes:
            return f"its label is {row.label}, and there are {self.classes} classes"
        if not ABSTAIN <= row.predict < self.classes:
            return f"its predict is {row.predict}, and there are {self.classes} classes"
        if row.correct != (row.predict == row.label):
            return f"its correct is {int(row.correct)}, its label {row.label} and its predict {row.predict}"
        if row.predict == ABSTAIN and row.radius != 0:
            return f"it abstains, and its radius is {row.radius:g}"
        if not 0 <= row.radius < math.inf or row.radius > self.reach + ROUNDING:
            return f"its radius is {row.radius:g}, and n, alpha and sigma allow {self.reach:.6f} at most"
        if row.samples not in self.samples:
            return f"its samples are {row.samples}, and no look at the counts is after that many"
        return None

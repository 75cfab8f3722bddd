"""How many noisy copies an image needs: all n at once, or in looks that stop when nothing asked for can change.

Whoever looks at the counts several times and stops at a good moment needs a bound that holds at all looks together.
Here alpha is spent: look k has its own alpha_k, and these add up to alpha. By the union bound all lower bounds hold at
once with probability 1 - alpha, so the best of them may be reported, whenever and for whatever reason one stops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from maxup.smoothing.bounds import lower_bound, probability_of, radius_of, upper_bound

GROWTH, FIRST = 4, 200  # of the looks: how they grow, and the fewest samples worth a look


@dataclass(frozen=True)
class Look:
    """A look at the counts."""

    n: int
    """Samples by then."""
    alpha: float
    """What it may spend."""


def fixed(n: int, alpha: float) -> list[Look]:
    """One look, at the end.

    Example:
        >>> fixed(1000, 0.001)
        [Look(n=1000, alpha=0.001)]
    """
    return [Look(n, alpha)]


def adaptive(n: int, alpha: float) -> list[Look]:
    """Looks at n, n/4, n/16 ... samples: half of alpha is for the last one, the others share the rest evenly.

    Example:
        >>> looks = adaptive(100_000, 0.001)
        >>> [look.n for look in looks], round(sum(look.alpha for look in looks), 12)
        ([390, 1562, 6250, 25000, 100000], 0.001)
    """
    counts = [n]
    while counts[0] // GROWTH >= FIRST:
        counts.insert(0, counts[0] // GROWTH)
    if len(counts) == 1:
        return fixed(n, alpha)
    early = alpha / 2 / (len(counts) - 1)
    return [*(Look(k, early) for k in counts[:-1]), Look(n, alpha / 2)]


def plan(n: int, alpha: float, *, early: bool) -> list[Look]:
    """The looks of adaptive sampling, or of fixed."""
    return adaptive(n, alpha) if early else fixed(n, alpha)


def reach(looks: Sequence[Look], sigma: float) -> float:
    """The largest radius there is, where all samples are of one class: sigma * Phi^-1(alpha^(1/n)), of the last look.

    Example:
        >>> round(reach(fixed(100_000, 0.001), sigma=0.5), 2)
        1.91
    """
    last = looks[-1]
    return max(0.0, radius_of(lower_bound(last.n, last.n, last.alpha), sigma))


@dataclass
class Evidence:
    """What is known of one image's class after some looks.

    Example:
        >>> evidence = Evidence(fixed(100, 0.001), sigma=0.5)
        >>> evidence.update(99)
        >>> evidence.settled, round(evidence.radius, 3)
        (True, 0.675)
    """

    looks: Sequence[Look]
    sigma: float
    radii: Sequence[float] | None = None
    """Those asked for; None asks for the largest radius there is, so that only an abstention is settled early."""
    p: float = 0.0
    """The best lower bound so far."""
    n: int = 0
    """Samples seen."""
    settled: bool = False
    _seen: int = field(default=0, repr=False)

    @property
    def wanted(self) -> int:
        """Samples until the next look."""
        return 0 if self.settled else self.looks[self._seen].n - self.n

    @property
    def radius(self) -> float:
        """The radius certified; below 0 it is an abstention."""
        return radius_of(self.p, self.sigma)

    def update(self, k: int) -> None:
        """At the next look k samples were of the class."""
        look = self.looks[self._seen]
        self._seen, self.n = self._seen + 1, look.n
        self.p = max(self.p, lower_bound(k, look.n, look.alpha))
        self.settled = self._seen == len(self.looks) or not self._undecided(upper_bound(k, look.n, look.alpha))

    def _undecided(self, upper: float) -> bool:
        """Whether a radius asked for, or 0, is neither reached nor out of reach."""
        if self.radii is None:
            return upper > 0.5
        thresholds = [0.5, *(probability_of(radius, self.sigma) for radius in self.radii)]
        return any(self.p < threshold <= upper for threshold in thresholds)

"""How many noisy copies an image needs: all n, or fewer with interim tests that stop once the result is decided.

A *look* is one such test, or the final one. Looking at the counts several times and stopping early needs bounds that
hold at all looks simultaneously. This module uses alpha spending: look k uses alpha_k, and the alpha_k sum to alpha. By
the union bound, all lower bounds hold simultaneously with probability at least 1 - alpha. So it is valid to stop at any
look and report the best bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from maxup.smoothing.bounds import certified_radius, lower_bound, required_probability, upper_bound

GROWTH, FIRST = 4, 200  # ratio of the samples at consecutive looks, and the fewest samples at a look


@dataclass(frozen=True)
class Look:
    """An interim or final test of the counts."""

    n: int
    """Number of samples so far."""
    alpha: float
    """Share of alpha that this look spends."""


def plan(n: int, alpha: float, *, early: bool) -> list[Look]:
    """Return one look at n samples, or, if `early`, adaptive looks at ..., n/16, n/4, n samples.

    The last adaptive look gets half of alpha, the others share the rest evenly.

    Example:
        >>> plan(1000, 0.001, early=False)
        [Look(n=1000, alpha=0.001)]
        >>> [look.n for look in plan(100_000, 0.001, early=True)]
        [390, 1562, 6250, 25000, 100000]
    """
    counts = [n]
    while early and counts[0] // GROWTH >= FIRST:
        counts.insert(0, counts[0] // GROWTH)
    if len(counts) == 1:
        return [Look(n, alpha)]
    share = alpha / 2 / (len(counts) - 1)
    return [*(Look(k, share) for k in counts[:-1]), Look(n, alpha / 2)]


def max_radius(looks: Sequence[Look], sigma: float) -> float:
    """Return the largest radius that can be certified, when all samples agree: sigma * Phi^-1(alpha^(1/n))."""
    last = looks[-1]
    return max(0.0, certified_radius(lower_bound(last.n, last.n, last.alpha), sigma))


@dataclass
class Evidence:
    """The bound on the probability of one image's class after some looks."""

    looks: Sequence[Look]
    sigma: float
    radii: Sequence[float] | None = None
    """Radii of interest. None means the largest possible radius, so that only an abstention is decided early."""
    p: float = 0.0
    """Best lower bound so far."""
    n: int = 0
    """Number of samples so far."""
    decided: bool = False
    """Whether more samples cannot change the result."""
    _looked: int = field(default=0, repr=False)

    @property
    def needed(self) -> int:
        """Number of samples until the next look."""
        return 0 if self.decided else self.looks[self._looked].n - self.n

    @property
    def radius(self) -> float:
        """Certified radius. Negative means an abstention."""
        return certified_radius(self.p, self.sigma)

    def update(self, k: int) -> None:
        """Add the next look, at which k samples in total had the class."""
        look = self.looks[self._looked]
        self._looked, self.n = self._looked + 1, look.n
        self.p = max(self.p, lower_bound(k, look.n, look.alpha))
        self.decided = self._looked == len(self.looks) or not self._undecided(upper_bound(k, look.n, look.alpha))

    def _undecided(self, upper: float) -> bool:
        """Whether radius 0 or a requested radius is still undecided."""
        if self.radii is None:
            return upper > 0.5
        thresholds = [0.5, *(required_probability(radius, self.sigma) for radius in self.radii)]
        return any(self.p < threshold <= upper for threshold in thresholds)

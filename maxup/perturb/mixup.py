"""MixUp (Zhang et al., 2018): blend every example with a partner."""

from collections.abc import Hashable

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, column, get_leaves, set_leaves
from maxup.perturb.base import Perturbation, integers
from maxup.perturb.labels import dirichlet, probabilities
from maxup.validate import ABOVE_0, check_num_classes, check_real


class MixUp(Perturbation):
    """x' = w * x + (1 - w) * x[partner], and the labels alike, with w ~ Beta(alpha, alpha).

    The draw is `partner`, (B,) indices, never the example itself, and `weight`, (B,).

    Args:
        num_classes: Needed for targets by index; probability targets know it.
        alpha: Parameter of the Beta distribution; 1 is uniform.
        key: Which entry of x to mix; default every floating leaf, all with one draw.

    Example:
        >>> x, y = MixUp(num_classes=3)(torch.rand(4, 5), torch.tensor([0, 1, 2, 0]))
        >>> y.shape
        torch.Size([4, 3])
    """

    def __init__(self, num_classes: int | None = None, *, alpha: float = 1.0, key: Hashable | None = None) -> None:
        self.num_classes, self.alpha, self.key = (
            check_num_classes("MixUp", num_classes),
            check_alpha("MixUp", alpha),
            key,
        )

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = get_leaves(batch[0], self.key)[0]
        return {"partner": partners(leaf, generator, "MixUp"), "weight": beta(self.alpha, leaf, generator)}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, y = batch
        partner, weight = draw["partner"], draw["weight"]
        leaves = get_leaves(x, self.key)
        if not all(leaf.is_floating_point() for leaf in leaves):
            raise TypeError(f"MixUp blends floating tensors, but x holds {leaves[0].dtype}; convert it with .float()")
        y = mix_labels(y, partner, weight, self.num_classes, "MixUp")
        return set_leaves(x, [blend(leaf, leaf[partner], weight) for leaf in leaves], self.key), y


def partners(like: Tensor, generator: Generator | None, who: str) -> Tensor:
    """A partner for every example, uniform over the others: (B,) indices."""
    n = len(like)
    if n < 2:
        raise ValueError(
            f"{who} mixes pairs of examples, but the batch holds {n}; "
            "use at least 2 (a DataLoader's last batch may be short: drop_last=True)"
        )
    return (torch.arange(n, device=like.device) + 1 + integers((n,), n - 1, like, generator)) % n


def beta(alpha: float, like: Tensor, generator: Generator | None) -> Tensor:
    """A Beta(alpha, alpha) variable for every example: (B,)."""
    return dirichlet(alpha, (len(like), 2), like, generator)[:, 0]


def mix_labels(y: object, partner: Tensor, weight: Tensor, num_classes: int | None, who: str) -> Tensor:
    """weight * y + (1 - weight) * y[partner], as probabilities (B, C)."""
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    soft = probabilities(y, num_classes, who, dtype)
    return blend(soft, soft[partner], weight)


def check_alpha(who: str, alpha: float) -> float:
    """A parameter the Beta distribution can have."""
    return check_real(who, "alpha", alpha, "above 0 and finite", ABOVE_0)


def blend(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """weight * a + (1 - weight) * b, with a weight for every example, (B,)."""
    w = column(weight.to(a.dtype), a)
    return w * a + (1 - w) * b

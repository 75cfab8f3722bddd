"""MixUp (Zhang et al., 2018): blend each example with a partner."""

from collections.abc import Hashable

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, expand_like, get_leaves, set_leaves
from maxup.perturb.base import Perturbation, uniform
from maxup.perturb.labels import dirichlet, probabilities
from maxup.validate import ABOVE_0, check_num_classes, check_real


class MixUp(Perturbation):
    """Mix examples and labels: x' = w * x + (1 - w) * x[partner], w ~ Beta(alpha, alpha).

    The draw is `partner`, (B,) indices of other examples, and `weight`, (B,).

    Args:
        num_classes: Number of classes. Required if targets are class ids.
        alpha: Parameter of the Beta distribution. Default: 1, which is uniform.
        key: Entry of x to mix. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = MixUp(num_classes=3)(torch.rand(4, 5), torch.tensor([0, 1, 2, 0]))
        >>> y.shape
        torch.Size([4, 3])
    """

    def __init__(self, num_classes: int | None = None, *, alpha: float = 1.0, key: Hashable | None = None) -> None:
        self.num_classes, self.key = check_num_classes("MixUp", num_classes), key
        self.alpha = check_real("MixUp", "alpha", alpha, "above 0 and finite", ABOVE_0)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = get_leaves(batch[0], self.key)[0]
        return {"partner": partners(leaf, generator, "MixUp"), "weight": beta(self.alpha, leaf, generator)}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, y = batch
        partner, weight = draw["partner"], draw["weight"]
        leaves = get_leaves(x, self.key)
        if not all(leaf.is_floating_point() for leaf in leaves):
            raise TypeError(f"MixUp blends floating-point tensors, but x holds {leaves[0].dtype}; use .float()")
        y = mix_labels(y, partner, weight, self.num_classes, "MixUp")
        return set_leaves(x, [blend(leaf, leaf[partner], weight) for leaf in leaves], self.key), y


def partners(like: Tensor, generator: Generator | None, who: str) -> Tensor:
    """Draw a partner per example, uniform over the other examples: (B,) indices."""
    n = len(like)
    if n < 2:
        raise ValueError(
            f"{who} mixes pairs of examples, but the batch has size {n}; use at least 2 (pass drop_last=True to the "
            "DataLoader if its last batch is short)"
        )
    shift = torch.randint(1, n, (n,), device=like.device, generator=generator)
    return (shift + torch.arange(n, device=like.device)) % n


def beta(alpha: float, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw Beta(alpha, alpha) per example: (B,)."""
    if alpha == 1:  # is uniform
        return uniform((len(like),), 0.0, 1.0, like, generator)
    return dirichlet(alpha, (len(like), 2), like, generator)[:, 0]


def mix_labels(y: object, partner: Tensor, weight: Tensor, num_classes: int | None, who: str) -> Tensor:
    """Return weight * y + (1 - weight) * y[partner] as probabilities (B, C)."""
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    soft = probabilities(y, num_classes, who, dtype)
    return blend(soft, soft[partner], weight)


def blend(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return weight * a + (1 - weight) * b, with one weight per example, (B,)."""
    w = expand_like(weight.to(a.dtype), a)
    return torch.addcmul(w * a, 1 - w, b)  # not torch.lerp, which returns NaN for two infinite values

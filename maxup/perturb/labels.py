"""Labels as probabilities, and noise in label space, which the paper names as future work."""

import torch
from torch import Generator, Tensor

from maxup.batch import Batch
from maxup.errors import a_type
from maxup.perturb.base import Perturbation
from maxup.validate import ABOVE_0, can_read_without_sync, check_num_classes, check_real


class LabelNoise(Perturbation):
    """Mix labels with random ones: y' = (1 - epsilon) * y + epsilon * q, q ~ Dirichlet(concentration). The draw is q.

    Args:
        epsilon: Weight of the noise, between 0 and 1.
        num_classes: Number of classes. Required if targets are class ids.
        concentration: Parameter of the symmetric Dirichlet distribution. 1 is uniform over all label distributions;
            smaller values put the noise on fewer classes.

    Example:
        >>> x, y = LabelNoise(0.1, num_classes=3)(torch.zeros(2, 5), torch.tensor([0, 2]))
        >>> y.shape, bool(y[0, 0] >= 0.9)
        (torch.Size([2, 3]), True)
    """

    def __init__(self, epsilon: float, *, num_classes: int | None = None, concentration: float = 1.0) -> None:
        self.epsilon = check_real("LabelNoise", "epsilon", epsilon, "between 0 and 1", 0, 1)
        self.num_classes = check_num_classes("LabelNoise", num_classes)
        self.concentration = check_real("LabelNoise", "concentration", concentration, "above 0 and finite", ABOVE_0)

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        y = probabilities(batch[1], self.num_classes, "LabelNoise")
        return dirichlet(self.concentration, (len(y), y.shape[1]), y, generator)

    def apply(self, batch: Batch, draw: Tensor) -> Batch:
        x, y = batch
        return x, (1 - self.epsilon) * probabilities(y, self.num_classes, "LabelNoise") + self.epsilon * draw


def probabilities(y: object, num_classes: int | None, who: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return targets as probabilities (B, C): one-hot for class ids, unchanged for probabilities."""
    if not isinstance(y, Tensor):
        raise TypeError(f"{who} changes labels, so y must be a tensor of class ids or probabilities, not {_name(y)}")
    if y.is_floating_point():
        if y.ndim != 2:
            fix = "use y.long() for class ids" if y.ndim == 1 else "pass probabilities, or class ids (B,)"
            raise ValueError(
                f"{who} expects probability targets (B, C), but y is {y.dtype} of shape {tuple(y.shape)}; {fix}"
            )
        return y
    if y.ndim != 1:
        masks = "; masks cannot be mixed, so use CutMix, which pastes them" if y.ndim > 2 else ""
        raise ValueError(f"{who} expects class ids (B,), but y has shape {tuple(y.shape)}{masks}")
    if not isinstance(num_classes, int):
        raise ValueError(
            f"{who} needs the number of classes, but num_classes is {num_classes!r}; pass num_classes=, or probability "
            "targets (B, C)"
        )
    if can_read_without_sync(y.device) and y.numel() and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise ValueError(f"{who}: labels run from {int(y.min())} to {int(y.max())}, but num_classes={num_classes}")
    return torch.zeros(len(y), num_classes, dtype=dtype, device=y.device).scatter_(1, y.long()[:, None], 1.0)


def entropy(y: Tensor) -> Tensor:
    """Return the entropy of probability targets in nats, averaged over positions: (B, C, ...) -> (B,)."""
    return torch.special.entr(y).sum(dim=1).reshape(len(y), -1).mean(1)


def dirichlet(a: float, size: tuple[int, int], like: Tensor, generator: Generator | None) -> Tensor:
    """Draw Dirichlet(a, ..., a) in each row: (B, K). `torch.distributions` does not take a generator.

    A draw is g_k / sum g with g ~ Gamma(a). For small a, g underflows in float32, so the computation uses logarithms:
    log Gamma(a) = log Gamma(a + 1) + log(uniform) / a in distribution (Marsaglia and Tsang, 2000).
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    gamma = torch._standard_gamma(torch.full(size, a + 1, dtype=dtype, device=like.device), generator=generator)
    minus_log = torch.empty_like(gamma).exponential_(generator=generator)  # of a uniform variable
    return (gamma.log() - minus_log / max(a, 1e-30)).softmax(1)  # a smaller a overflows; the result is one-hot anyway


def _name(y: object) -> str:
    return "None" if y is None else a_type(y)

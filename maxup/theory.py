"""Theorem 1: with Gaussian copies, MaxUp adds a gradient-norm penalty to the loss.

E[max_{i <= m} L(x + z_i)]  =  L(x) + c(m, sigma) * ||grad_x L(x)||_2 + O(sigma^2),    z_i ~ N(0, sigma^2 I)

c(m, sigma)  =  sigma * E[max of m standard normals]
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import inner
from maxup.isolation import preserve_state
from maxup.objectives.base import Forward, LossFn, call_model, cross_entropy, unwrap
from maxup.perturb.noise import Gaussian, add, check_nonnegative, floating_leaves
from maxup.validate import check_batch, check_losses, check_positive_int


def expected_max(m: int) -> float:
    """Return E[max of m standard normals], to about 14 digits.

    Example:
        >>> round(expected_max(2), 4), round(expected_max(4), 4)
        (0.5642, 1.0294)
    """
    check_positive_int("m", m)
    # The maximum has density m phi(z) Phi(z)^(m-1): smooth and 0 beyond 12, so the trapezoid rule is exact.
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    log_density = -z.square() / 2 - math.log(2 * math.pi) / 2 + (m - 1) * torch.special.log_ndtr(z)
    return float(torch.trapezoid(z * m * log_density.exp(), z))


def c(m: int, sigma: float) -> float:
    """Return the constant of Theorem 1: the weight of the gradient-norm penalty for m Gaussian copies.

    Example:
        >>> round(c(4, sigma=0.2), 4)
        0.2059
    """
    return check_nonnegative("c", "sigma", sigma) * expected_max(m)


@dataclass
class Penalty:
    """The gradient-norm penalty of Theorem 1 on a batch."""

    loss: Tensor
    """L(x) per example, (B,)."""
    gradient_norm: Tensor
    """||grad_x L(x)||_2 per example, (B,)."""
    c: float
    """The constant of Theorem 1."""

    @property
    def penalty(self) -> Tensor:
        """c * ||grad_x L(x)||_2 per example, (B,)."""
        return self.c * self.gradient_norm

    @property
    def expansion(self) -> Tensor:
        """The expected worst loss by Theorem 1, L(x) + penalty, (B,)."""
        return self.loss + self.penalty

    def __str__(self) -> str:
        loss, penalty, norm = (float(t.mean()) for t in (self.loss, self.penalty, self.gradient_norm))
        return f"loss {loss:.4g}, penalty {penalty:.4g} (c {self.c:.4g} times mean gradient norm {norm:.4g})"


def penalty(
    model: Any, x: Any, y: Any, *, m: int, sigma: float, forward: Forward = call_model, loss_fn: LossFn = cross_entropy
) -> Penalty:
    """Return the gradient-norm penalty that `MaxUp(Gaussian(sigma), m)` implies for this model and batch.

    Compare `penalty` with `loss`. If it is much smaller, MaxUp changes little; if it is much larger, it dominates
    training. BatchNorm uses its running statistics, so the examples do not affect each other. The model's mode and
    state do not change.

    Args:
        model: The model.
        x: Inputs. The gradient is with respect to all floating-point leaves.
        y: Targets.
        m: Copies per example.
        sigma: Standard deviation of the Gaussian perturbation.
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.

    Example:
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> penalty(model, x, y, m=4, sigma=0.2).penalty.shape
        torch.Size([8])
    """
    losses, gradients = _gradients(model, x, y, forward, loss_fn)
    return Penalty(losses, inner(gradients, gradients).sqrt(), c(m, sigma))


def remainder(
    model: Any,
    x: Any,
    y: Any,
    *,
    m: int,
    sigma: float,
    samples: int = 1000,
    generator: Generator | None = None,
    forward: Forward = call_model,
    loss_fn: LossFn = cross_entropy,
) -> tuple[Tensor, Tensor]:
    """Estimate the remainder of Theorem 1, E[max_i L(x + z_i)] - L(x) - c * ||grad_x L(x)||, by Monte Carlo.

    Each sample subtracts max_i <grad_x L(x), z_i> for the same draws z_i, whose mean is exactly c * ||grad_x L(x)||.
    The difference has a standard deviation of order sigma^2, so a few hundred samples are enough.

    Args:
        model: The model.
        x: Inputs.
        y: Targets.
        m: Copies per example.
        sigma: Standard deviation of the Gaussian perturbation.
        samples: Monte Carlo samples, each of m copies.
        generator: Source of the draws. Default: a new one, seeded by `torch.manual_seed`.
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.

    Returns:
        The mean per example and its standard error, (B,) each.

    Example:
        >>> model = torch.nn.Linear(5, 1)  # with its output as the loss, which is linear, so the remainder is 0
        >>> first = lambda output, _: output[:, 0]
        >>> mean, error = remainder(model, torch.rand(8, 5), None, m=4, sigma=0.5, samples=10, loss_fn=first)
        >>> bool(mean.abs().max() < 1e-5)
        True
    """
    check_positive_int("samples", samples)
    base, gradients = _gradients(model, x, y, forward, loss_fn)
    check_positive_int("m", m)
    if generator is None:  # not the global random state, which is restored before every copy
        generator = Generator(gradients[0].device).manual_seed(torch.initial_seed())
    gaussian = Gaussian(sigma)
    remainders = []
    with preserve_state(unwrap(model), (x, y), norm="running") as rewind, torch.no_grad():
        for _ in range(samples):
            exact, linear = [], []
            for _ in range(m):
                noise = gaussian.draw((x, y), generator)
                rewind()
                exact.append(loss_fn(forward(unwrap(model), add((x, y), noise, None)[0]), y) - base)
                linear.append(inner(gradients, noise))
            remainders.append(torch.stack(exact).amax(0) - torch.stack(linear).amax(0))  # (B,)
    values = torch.stack(remainders)  # (samples, B)
    return values.mean(0), values.std(0) / samples**0.5


def _gradients(model: Any, x: Any, y: Any, forward: Forward, loss_fn: LossFn) -> tuple[Tensor, list[Tensor]]:
    """Return L(x), (B,), and grad_x L(x) as a list of leaves."""
    check_batch((x, y))
    zeros = [torch.zeros_like(leaf, requires_grad=True) for leaf in floating_leaves(x, None, "theory")]
    with preserve_state(unwrap(model), (x, y), norm="running"), torch.enable_grad():
        losses = loss_fn(forward(unwrap(model), add((x, y), zeros, None)[0]), y)  # (B,)
        check_losses(losses, len(zeros[0]))
        gradients = torch.autograd.grad(losses.sum(), zeros, allow_unused=True, materialize_grads=True)
        return losses.detach(), list(gradients)

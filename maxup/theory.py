"""Theorem 1: with Gaussian copies, MaxUp adds a gradient-norm penalty to the loss.

E[max_{i <= m} L(x + z_i)]  =  L(x) + c(m, sigma) * ||grad_x L(x)||_2 + O(sigma^2),    z_i ~ N(0, sigma^2 I)

c(m, sigma)  =  sigma * E[max of m standard normals]
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.isolation import preserve_state
from maxup.objectives.base import Forward, LossFn, bare, call, cross_entropy
from maxup.perturb.noise import Gaussian, add, floating, nonnegative
from maxup.validate import check_batch, check_losses, check_whole


def expected_max(m: int) -> float:
    """E[max of m standard normals], to about 14 digits.

    Example:
        >>> round(expected_max(2), 4), round(expected_max(4), 4)
        (0.5642, 1.0294)
    """
    check_whole("m", m)
    # The maximum has density m phi(z) Phi(z)^(m-1), smooth and gone beyond 12: the trapezoid rule is exact there.
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    log_density = -z.square() / 2 - math.log(2 * math.pi) / 2 + (m - 1) * torch.special.log_ndtr(z)
    return float(torch.trapezoid(z * m * log_density.exp(), z))


def c(m: int, sigma: float) -> float:
    """The constant of Theorem 1: how strongly m Gaussian copies of deviation sigma penalize the gradient norm.

    Example:
        >>> round(c(4, sigma=0.2), 4)
        0.2059
    """
    return nonnegative("c", "sigma", sigma) * expected_max(m)


@dataclass
class Penalty:
    """How large the implied gradient-norm penalty is on a batch."""

    loss: Tensor
    """L(x) of every example, (B,)."""
    gradient_norm: Tensor
    """||grad_x L(x)||_2 of every example, (B,)."""
    c: float
    """The constant of Theorem 1."""

    @property
    def penalty(self) -> Tensor:
        """c * ||grad_x L(x)||_2 of every example, (B,)."""
        return self.c * self.gradient_norm

    @property
    def expansion(self) -> Tensor:
        """Theorem 1's value of the expected worst loss, (B,)."""
        return self.loss + self.penalty

    def __str__(self) -> str:
        loss, penalty, norm = (float(t.mean()) for t in (self.loss, self.penalty, self.gradient_norm))
        return f"loss {loss:.4g}, penalty {penalty:.4g} (c {self.c:.4g} times mean gradient norm {norm:.4g})"


def penalty(
    model: Any, x: Any, y: Any, *, m: int, sigma: float, forward: Forward = call, loss_fn: LossFn = cross_entropy
) -> Penalty:
    """How large is the penalty that `MaxUp(Gaussian(sigma), m)` implies, on this model and batch?

    Compare `penalty` with `loss`: far below it MaxUp changes little, far above it dominates training. BatchNorm uses
    its running statistics, so that an example's gradient is its own; nothing in the model changes.

    Args:
        model: The model, in the mode it is in.
        x: Inputs; the gradient is taken with respect to every floating leaf.
        y: Targets.
        m: Copies.
        sigma: Standard deviation of the Gaussian perturbation.
        forward: How the model is called, `forward(model, x) -> output`.
        loss_fn: `loss_fn(output, target) -> (B,)`.

    Example:
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> found = penalty(model, x, y, m=4, sigma=0.2)
        >>> found.penalty.shape
        torch.Size([8])
    """
    losses, gradients = _gradients(model, x, y, forward, loss_fn)
    return Penalty(losses, _inner(gradients, gradients).sqrt(), c(m, sigma))


def remainder(
    model: Any,
    x: Any,
    y: Any,
    *,
    m: int,
    sigma: float,
    samples: int = 1000,
    generator: Generator | None = None,
    forward: Forward = call,
    loss_fn: LossFn = cross_entropy,
) -> tuple[Tensor, Tensor]:
    """What Theorem 1 leaves out, E[max_i L(x + z_i)] - L(x) - c * ||grad_x L(x)||, by Monte Carlo.

    Each sample subtracts max_i <grad_x L(x), z_i>, whose mean is c * ||grad_x L(x)|| exactly, from the same draws: what
    is left has a deviation of order sigma^2 itself, so a few hundred samples show how it shrinks.

    Args:
        model: The model, in the mode it is in.
        x: Inputs.
        y: Targets.
        m: Copies.
        sigma: Standard deviation of the Gaussian perturbation.
        samples: Monte Carlo samples, each of m copies.
        generator: Source of the draws; default one seeded by `torch.manual_seed`.
        forward: How the model is called, `forward(model, x) -> output`.
        loss_fn: `loss_fn(output, target) -> (B,)`.

    Returns:
        The mean of every example and its standard error, (B,) each.

    Example:
        >>> model = torch.nn.Linear(5, 1)  # with the output itself as loss: linear, so the theorem is exact
        >>> first = lambda output, _: output[:, 0]
        >>> mean, error = remainder(model, torch.rand(8, 5), None, m=4, sigma=0.5, samples=10, loss_fn=first)
        >>> bool(mean.abs().max() < 1e-5)
        True
    """
    check_whole("samples", samples)
    base, gradients = _gradients(model, x, y, forward, loss_fn)
    check_whole("m", m)
    if generator is None:  # not the global stream, which is rewound for every copy
        generator = Generator(gradients[0].device).manual_seed(torch.initial_seed())
    gaussian = Gaussian(sigma)
    rest = []
    with preserve_state(bare(model), (x, y), norm="running") as rewind, torch.no_grad():
        for _ in range(samples):
            exact, linear = [], []
            for _ in range(m):
                noise = gaussian.draw((x, y), generator)
                rewind()
                exact.append(loss_fn(forward(bare(model), add((x, y), noise, None)[0]), y) - base)
                linear.append(_inner(gradients, noise))
            rest.append(torch.stack(exact).amax(0) - torch.stack(linear).amax(0))  # (B,)
    values = torch.stack(rest)  # (samples, B)
    return values.mean(0), values.std(0) / samples**0.5


def _gradients(model: Any, x: Any, y: Any, forward: Forward, loss_fn: LossFn) -> tuple[Tensor, list[Tensor]]:
    """L(x) and grad_x L(x) of every example."""
    check_batch((x, y))
    zeros = [torch.zeros_like(leaf, requires_grad=True) for leaf in floating(x, None, "theory")]
    with preserve_state(bare(model), (x, y), norm="running"), torch.enable_grad():
        losses = loss_fn(forward(bare(model), add((x, y), zeros, None)[0]), y)  # (B,)
        check_losses(losses, len(zeros[0]))
        gradients = torch.autograd.grad(losses.sum(), zeros, allow_unused=True, materialize_grads=True)
        return losses.detach(), list(gradients)


def _inner(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Inner product of every example, over all leaves: (B,)."""
    return torch.stack([(u.flatten(1) * v.flatten(1)).sum(1) for u, v in zip(a, b, strict=True)]).sum(0)

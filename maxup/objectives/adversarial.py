"""Adversarial training (Madry et al., 2018): the maximum over a ball, found by projected gradient ascent.

min_theta  E_x [ max_{x' in B(x, r)} L(x', theta) ]                                     (eq. 7)
"""

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, get_leaves
from maxup.objectives.base import Forward, LossFn, Objective, Outcome, call_model, cross_entropy, unwrap
from maxup.perturb.noise import UniformBall, add, check_clip, check_nonnegative, clip_delta, normalize_l2, project_l2
from maxup.validate import check_choice, check_positive_int


class Adversarial(Objective):
    """PGD adversarial training in a ball around every example.

    The attack starts at a uniformly random point of the ball. Like MaxUp's scoring, it has no side effects, and all its
    steps and the training pass use the same dropout masks.

    Args:
        radius: Radius of the ball, in the units of x.
        p: Norm of the ball: 2 for l2, math.inf for l-infinity.
        steps: Gradient steps of the attack.
        step_size: Length of a step. Default: 2.5 * radius / steps, as in Madry et al.
        clip: Smallest and largest value of x, such as (0, 1) for images that are not normalized. Default: no limit.
        norm: Statistics that train-mode BatchNorm uses during the attack: "batch" or "running".
        key: Which entry of x to attack. Default: every floating-point leaf, each in a separate ball.
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.
        generator: Source of the starting points. Default: a new one, seeded by `torch.manual_seed`.

    Example:
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> Adversarial(radius=0.1, p=math.inf, steps=5)(model, x, y).backward()
    """

    def __init__(
        self,
        radius: float,
        *,
        p: float = 2,
        steps: int = 10,
        step_size: float | None = None,
        clip: tuple[float, float] | None = None,
        norm: str = "batch",
        key: Hashable | None = None,
        forward: Forward = call_model,
        loss_fn: LossFn = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        check_nonnegative("Adversarial", "radius", radius)
        super().__init__(UniformBall(radius, p=p, key=key), loss_fn=loss_fn, forward=forward, generator=generator)
        self.radius, self.p, self.key, self.clip = radius, p, key, check_clip("Adversarial", clip)
        self.steps = check_positive_int("steps", steps)
        step_size = 2.5 * radius / steps if step_size is None else step_size
        self.step_size = check_nonnegative("Adversarial", "step_size", step_size)
        self.norm = check_choice("norm", norm, "batch", "running")

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """Return the loss of eq. 7 at the point that the attack reached."""
        with self._step(x, y) as (batch, generator):
            x, target = self.attack(model, batch, self.perturbation.draw(batch, generator))
            output = self.forward(model, x)
            losses = self._losses(output, target, len(get_leaves(x, self.key)[0]))
            return Outcome(self._mean(losses, target), losses, output, target)

    def attack(self, model: Any, batch: Batch, delta: list[Tensor]) -> Batch:
        """Climb the loss from x + delta, staying in the ball: x' = Project(x' + step_size * ascent direction)."""
        model, origin = unwrap(model), get_leaves(batch[0], self.key)
        delta = [self._inside(d, o) for d, o in zip(delta, origin, strict=True)]
        with self._preserve_state(model, batch, self.norm) as rewind:
            for _ in range(self.steps):
                rewind()
                with torch.enable_grad():
                    delta = [d.detach().requires_grad_() for d in delta]
                    x, target = add(batch, delta, self.key)
                    losses = self._losses(self.forward(model, x), target, len(origin[0]))
                    gradients = torch.autograd.grad(losses.sum(), delta, allow_unused=True, materialize_grads=True)
                with torch.no_grad():
                    climbed = [d + self.step_size * self._direction(g) for d, g in zip(delta, gradients, strict=True)]
                    delta = [self._inside(d, o) for d, o in zip(climbed, origin, strict=True)]
        return add(batch, delta, self.key)

    def _direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign() if self.p == math.inf else normalize_l2(gradient)

    def _inside(self, delta: Tensor, origin: Tensor) -> Tensor:
        """Project delta onto the ball, then clip x + delta."""
        delta = delta.clamp(-self.radius, self.radius) if self.p == math.inf else project_l2(delta, self.radius)
        return clip_delta(origin, delta, self.clip)

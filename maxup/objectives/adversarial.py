"""Adversarial training (Madry et al., 2018): the maximum over a ball, found by projected gradient ascent.

min_theta  E_x [ max_{x' in B(x, r)} L(x', theta) ]                                     (eq. 7)
"""

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, get_leaves
from maxup.objectives.base import Forward, LossFn, Objective, Outcome, bare, call, cross_entropy
from maxup.perturb.noise import UniformBall, add, check_clip, clamped, into_ball, nonnegative, unit
from maxup.validate import check_choice, check_whole


class Adversarial(Objective):
    """PGD adversarial training in a ball of the given radius about every example.

    The attack starts at a uniform point of the ball and leaves no trace, as MaxUp's scoring does; every step of it and
    the training pass use the same dropout masks.

    Args:
        radius: Radius of the ball, in the units of x.
        p: 2 for the Euclidean ball, math.inf for the cube.
        steps: Gradient steps of the attack.
        step_size: Length of a step; default 2.5 * radius / steps, as Madry et al.
        clip: Lowest and highest value x may take, such as (0, 1) for images that are not normalized; default no limit.
        norm: Train-mode BatchNorm attacks with the statistics of its own "batch", or with the "running" ones.
        key: Which entry of x to attack; default every floating leaf, each in a ball of its own.
        forward: How the model is called, `forward(model, x) -> output`.
        loss_fn: `loss_fn(output, target) -> (B,)`.
        generator: Source of the starting points; default its own, which obeys `torch.manual_seed`.

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
        forward: Forward = call,
        loss_fn: LossFn = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        nonnegative("Adversarial", "radius", radius)
        super().__init__(UniformBall(radius, p=p, key=key), loss_fn=loss_fn, forward=forward, generator=generator)
        self.radius, self.p, self.key, self.clip = radius, p, key, check_clip("Adversarial", clip)
        self.steps = check_whole("steps", steps)
        self.step_size = 2.5 * radius / steps if step_size is None else step_size
        self.norm = check_choice("norm", norm, "batch", "running")

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """The loss of eq. 7 at the point the attack reached."""
        with self._step(x, y) as (batch, generator):
            x, target = self.attack(model, batch, self.perturbation.draw(batch, generator))
            output = self.forward(model, x)
            losses = self._losses(output, target, len(get_leaves(x, self.key)[0]))
            return Outcome(self._mean(losses, target), losses, output, target)

    def attack(self, model: Any, batch: Batch, delta: list[Tensor]) -> Batch:
        """Climb the loss from x + delta, staying in the ball: x' = Project(x' + step_size * ascent direction)."""
        model, origin = bare(model), get_leaves(batch[0], self.key)
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
        return gradient.sign() if self.p == math.inf else unit(gradient)

    def _inside(self, delta: Tensor, origin: Tensor) -> Tensor:
        """The nearest point of the ball (and then of the allowed values)."""
        delta = delta.clamp(-self.radius, self.radius) if self.p == math.inf else into_ball(delta, self.radius)
        return clamped(origin, delta, self.clip)

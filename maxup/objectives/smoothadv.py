"""SmoothAdv (Salman et al., 2019): adversarial training of the smoothed classifier.

min_theta  E_x [ 1/k sum_i L(x' + n_i, theta) ],    n_1 ... n_k ~ N(0, sigma^2 I)
x'  =  argmax_{|x' - x| <= r}  -log( 1/k sum_i softmax f(x' + n_i)_y )

The attack uses the same k noise samples as training, with the model in evaluation mode.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from maxup.batch import expand_like
from maxup.isolation import isolated_eval
from maxup.objectives.base import Forward, Objective, Outcome, call_model, unwrap
from maxup.perturb.noise import Gaussian, check_clip, check_nonnegative, clip_delta, normalize_l2, project_l2
from maxup.validate import check_choice, check_positive_int

Scores = Callable[[Tensor], Tensor]  # images (B, ...) -> log-probabilities (B, C)
GAMMA = 0.05  # relative change of the perturbation's length per DDN step


class SmoothAdv(Objective):
    """Adversarial training for randomized smoothing: train on noisy copies of the worst point of an l2 ball.

    Args:
        sigma: Standard deviation of the noise, in the units of x.
        radius: Radius of the ball, or a function of the step such as `rising(...)`.
        samples: Noise samples per example, k.
        steps: Gradient steps of the attack.
        attack: "pgd" ascends within the ball; "ddn" searches for the shortest perturbation that changes the prediction.
        clip: Smallest and largest value of x before noise is added; None for no limit.
        forward: How to call the model, `forward(model, x) -> output`.
        generator: Source of the noise. Default: a new one, seeded by `torch.manual_seed`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        >>> x, y = torch.rand(8, 1, 8, 8), torch.randint(3, (8,))
        >>> SmoothAdv(sigma=0.25, radius=0.5, samples=2, steps=2)(model, x, y).backward()
    """

    def __init__(
        self,
        sigma: float,
        radius: float | Callable[[int], float],
        *,
        samples: int = 1,
        steps: int = 2,
        attack: str = "pgd",
        clip: tuple[float, float] | None = (0.0, 1.0),
        forward: Forward = call_model,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(Gaussian(sigma), samples, forward=forward, generator=generator)
        self.radius = radius if callable(radius) else check_nonnegative("SmoothAdv", "radius", radius)
        self.steps, self.clip = check_positive_int("steps", steps), check_clip("SmoothAdv", clip)
        self.sigma, self.samples, self.attack = sigma, samples, check_choice("attack", attack, "pgd", "ddn")

    def depends_on(self) -> Any:
        """Return what a step depends on besides batch and draws, with the radius of this step."""
        return super().depends_on(), self._radius()

    def _radius(self) -> float:
        radius = self.radius(self.step) if callable(self.radius) else self.radius
        return check_nonnegative("SmoothAdv", "radius", radius)

    def run(self, model: object, x: Tensor, y: Tensor) -> Outcome:
        """Return the mean loss of k noisy copies of the point that the attack reached. Outputs are (k * B, ...)."""
        with self._step(x, y) as (batch, generator):
            if not isinstance(y, Tensor) or y.is_floating_point() or y.ndim != 1:
                raise TypeError("SmoothAdv needs class ids (B,) as y, not probabilities")
            radius = self._radius()
            draws = self._draws(batch, generator, self.copies())
            network, noise = unwrap(model), [draw[0] for draw in draws]
            others = self._other_modules(network) if isinstance(network, nn.Module) else ()
            with isolated_eval(network, batch, others) as rewind:

                def logits(x: Tensor) -> Tensor:
                    rewind()  # every pass of the attack sees the same state
                    return self.forward(network, x)

                scores = partial(soft, logits, noise)
                attack = {"pgd": pgd, "ddn": ddn}[self.attack]
                x = attack(scores, x, y, radius=radius, steps=self.steps, clip=self.clip)
            output, target, losses = self._forward(model, (x, y), draws)
            return Outcome(self._mean(losses, target), losses, output, target)


def rising(radius: float, *, epochs: int, steps_per_epoch: int) -> Callable[[int], float]:
    """Return a schedule for `SmoothAdv(radius=...)` that increases every epoch and reaches `radius` in epoch `epochs`.

    Example:
        >>> r = rising(0.5, epochs=10, steps_per_epoch=100)
        >>> r(0), r(99), r(450), r(900), r(10_000)
        (0.05, 0.05, 0.25, 0.5, 0.5)
    """
    return partial(_risen, radius=radius, epochs=max(1, epochs), steps_per_epoch=steps_per_epoch)


def _risen(step: int, *, radius: float, epochs: int, steps_per_epoch: int) -> float:
    return radius * min(1.0, (step // steps_per_epoch + 1) / epochs)


def soft(model: Scores, noise: list[Tensor], x: Tensor) -> Tensor:
    """Return log( 1/k sum_i softmax f(x + n_i) ), the soft smoothed classifier: (B, ...) -> (B, C)."""
    logits = model(torch.cat([x + n for n in noise])).float().unflatten(0, (len(noise), len(x)))  # (k, B, C)
    return logits.log_softmax(2).logsumexp(0) - math.log(len(noise))


def pgd(
    scores: Scores, x: Tensor, y: Tensor, *, radius: float, steps: int, clip: tuple[float, float] | None = None
) -> Tensor:
    """Maximize -log p_y in an l2 ball by projected gradient ascent from x, in steps of 2 * radius / steps.

    Args:
        scores: The soft classifier.
        x: Images, (B, ...).
        y: Class ids, (B,).
        radius: Radius of the ball.
        steps: Gradient steps.
        clip: Smallest and largest value of the result.

    Returns:
        The adversarial images, (B, ...).
    """
    delta = torch.zeros_like(x)
    for _ in range(steps):
        gradient, _ = _ascent(scores, x, y, delta)
        delta = project_l2(clip_delta(x, delta + 2 * radius / steps * gradient, clip), radius)
    return x + delta


def ddn(
    scores: Scores, x: Tensor, y: Tensor, *, radius: float, steps: int, clip: tuple[float, float] | None = None
) -> Tensor:
    """Decoupled direction and norm (Rony et al., 2019) within an l2 ball. The arguments are those of `pgd`.

    The length of the perturbation starts at the radius and never exceeds it. It shrinks by 5 % when the perturbation
    changes the prediction and otherwise grows by 5 %. The direction follows the gradient, with a step size that falls
    from 1 to 0.01 by a cosine schedule.

    Returns:
        The adversarial images, (B, ...): x plus the shortest perturbation that changed the prediction, or the last one.
    """
    delta, best = torch.zeros_like(x), torch.zeros_like(x)
    length = torch.full((len(x),), float(radius), dtype=x.dtype, device=x.device)
    shortest = torch.full_like(length, math.inf)
    for step in range(steps):
        rate = 0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2
        gradient, prediction = _ascent(scores, x, y, delta)
        fooled, size = prediction != y, delta.flatten(1).norm(dim=1)
        shorter = fooled & (size < shortest)
        best, shortest = torch.where(expand_like(shorter, x), delta, best), torch.where(shorter, size, shortest)
        delta = delta + rate * gradient
        length = (length * torch.where(fooled, 1 - GAMMA, 1 + GAMMA)).clamp(max=radius)
        delta = clip_delta(x, expand_like(length, delta) * normalize_l2(delta), clip)
    return x + torch.where(expand_like(shortest.isfinite(), x), best, delta)


def _ascent(scores: Scores, x: Tensor, y: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit gradient of -log p_y at x + delta, and the prediction there."""
    with torch.enable_grad():
        delta = delta.detach().requires_grad_()
        log_p = scores(x + delta)
        if not log_p.requires_grad:
            raise ValueError("the model's outputs have no gradient with respect to x, which the attack needs")
        (gradient,) = torch.autograd.grad(F.nll_loss(log_p, y, reduction="sum"), delta)
    return normalize_l2(gradient), log_p.detach().argmax(1)

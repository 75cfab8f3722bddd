"""SmoothAdv (Salman et al., 2019): adversarial training of the smoothed classifier.

min_theta  E_x [ 1/k sum_i L(x' + n_i, theta) ],    n_1 ... n_k ~ N(0, sigma^2 I)
x'  =  argmax_{|x' - x| <= r}  -log( 1/k sum_i softmax f(x' + n_i)_y )

The attack sees the soft classifier smoothed by the same k noises that are trained on, in evaluation mode.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from maxup.batch import column
from maxup.isolation import called_modules, isolated_eval
from maxup.objectives.base import Forward, Objective, Outcome, bare, call
from maxup.perturb.noise import Gaussian, check_clip, clamped, into_ball, nonnegative, unit
from maxup.validate import check_choice, check_whole

Scores = Callable[[Tensor], Tensor]  # images (B, ...) -> log-probabilities (B, C)
GAMMA = 0.05  # by how much DDN lengthens or shortens a perturbation


class SmoothAdv(Objective):
    """Training on noisy copies of the worst point of an l2 ball, for the classifier smoothed by that noise.

    Args:
        sigma: Standard deviation of the noise, in the units of x.
        radius: Of the ball, or a function of the step: see `rising`.
        samples: Noises of every example, k.
        steps: Gradient steps of the attack.
        attack: "pgd" climbs within the ball; "ddn" looks for the shortest perturbation that changes the answer.
        clip: Lowest and highest value x may take before noise is added; None for no limit.
        forward: How the model is called, `forward(model, x) -> output`.
        generator: Source of the noise; default its own, which obeys `torch.manual_seed`.

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
        forward: Forward = call,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(Gaussian(sigma), samples, forward=forward, generator=generator)
        self.radius = radius if callable(radius) else nonnegative("SmoothAdv", "radius", radius)
        self.steps, self.clip = check_whole("steps", steps), check_clip("SmoothAdv", clip)
        self.sigma, self.samples, self.attack = sigma, samples, check_choice("attack", attack, "pgd", "ddn")

    def depends_on(self) -> tuple[int, float]:
        """The copies and the radius of this step."""
        radius = self.radius(self.step) if callable(self.radius) else self.radius
        return self.copies(), nonnegative("SmoothAdv", "radius", radius)

    def run(self, model: object, x: Tensor, y: Tensor) -> Outcome:
        """The mean loss of all k noisy copies of the point the attack reached; output and losses are (k * B, ...)."""
        with self._step(x, y) as (batch, generator):
            if not isinstance(y, Tensor) or y.is_floating_point() or y.ndim != 1:
                raise TypeError("SmoothAdv raises the loss of a class: y must be classes (B,), not probabilities")
            copies, radius = self.depends_on()
            draws = self._draws(batch, generator, copies)
            network, noise = bare(model), [draw[0] for draw in draws]
            with isolated_eval(network, batch, called_modules(self.forward)) as rewind:

                def answer(x: Tensor) -> Tensor:
                    rewind()  # every pass of the attack sees the same state
                    return self.forward(network, x)

                scores = partial(soft, answer, noise)
                attack = {"pgd": pgd, "ddn": ddn}[self.attack]
                x = attack(scores, x, y, radius=radius, steps=self.steps, clip=self.clip)
            output, target, losses = self._forward(model, (x, y), draws)
            return Outcome(self._mean(losses, target), losses, output, target)


def rising(radius: float, *, epochs: int, steps_per_epoch: int) -> Callable[[int], float]:
    """A schedule for `SmoothAdv(radius=...)`: the radius rises epoch by epoch, and is whole in epoch number `epochs`.

    Example:
        >>> r = rising(0.5, epochs=10, steps_per_epoch=100)
        >>> r(0), r(99), r(450), r(900), r(10_000)
        (0.05, 0.05, 0.25, 0.5, 0.5)
    """
    return partial(_risen, radius=radius, epochs=max(1, epochs), steps_per_epoch=steps_per_epoch)


def _risen(step: int, *, radius: float, epochs: int, steps_per_epoch: int) -> float:
    return radius * min(1.0, (step // steps_per_epoch + 1) / epochs)


def soft(model: Scores, noise: list[Tensor], x: Tensor) -> Tensor:
    """log( 1/k sum_i softmax f(x + n_i) ), the soft smoothed classifier: (B, ...) -> (B, C)."""
    logits = model(torch.cat([x + n for n in noise])).float().unflatten(0, (len(noise), len(x)))  # (k, B, C)
    return logits.log_softmax(2).logsumexp(0) - math.log(len(noise))


def pgd(
    scores: Scores, x: Tensor, y: Tensor, *, radius: float, steps: int, clip: tuple[float, float] | None = None
) -> Tensor:
    """Projected gradient ascent on -log p_y from x itself, in steps of 2 * radius / steps.

    Args:
        scores: The soft classifier.
        x: Images, (B, ...).
        y: Their classes, (B,).
        radius: Of the l2 ball.
        steps: Gradient steps.
        clip: Lowest and highest value.

    Returns:
        The points reached, (B, ...).

    Example:
        >>> x = torch.tensor([[1.0, 0.0]])
        >>> pgd(lambda x: x.log_softmax(1), x, torch.tensor([0]), radius=0.5, steps=4)
        tensor([[0.6464, 0.3536]])
    """
    delta = torch.zeros_like(x)
    for _ in range(steps):
        gradient, _ = _ascent(scores, x, y, delta)
        delta = into_ball(clamped(x, delta + 2 * radius / steps * gradient, clip), radius)
    return x + delta


def ddn(
    scores: Scores, x: Tensor, y: Tensor, *, radius: float, steps: int, clip: tuple[float, float] | None = None
) -> Tensor:
    """Decoupled direction and norm (Rony et al., 2019), within a ball; the arguments are those of `pgd`.

    The perturbation's length shrinks by 5 % where it changes the answer and grows by 5 % where not, beginning with the
    radius, which it never exceeds; its direction follows the gradient in steps that fall from 1 to 0.01 as a cosine.

    Returns:
        The shortest perturbation found that changes the answer; where none did, the last one.
    """
    delta, best = torch.zeros_like(x), torch.zeros_like(x)
    length = torch.full((len(x),), float(radius), dtype=x.dtype, device=x.device)
    shortest = torch.full_like(length, math.inf)
    for step in range(steps):
        rate = 0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2
        gradient, answer = _ascent(scores, x, y, delta)
        fooled, size = answer != y, delta.flatten(1).norm(dim=1)
        shorter = fooled & (size < shortest)
        best, shortest = torch.where(column(shorter, x), delta, best), torch.where(shorter, size, shortest)
        delta = delta + rate * gradient
        length = (length * torch.where(fooled, 1 - GAMMA, 1 + GAMMA)).clamp(max=radius)
        delta = clamped(x, column(length, delta) * unit(delta), clip)
    return x + torch.where(column(shortest.isfinite(), x), best, delta)


def _ascent(scores: Scores, x: Tensor, y: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The direction in which -log p_y rises fastest, of length 1, and the answer at x + delta."""
    with torch.enable_grad():
        delta = delta.detach().requires_grad_()
        found = scores(x + delta)
        if not found.requires_grad:
            raise ValueError("the model's answers have no gradient by x, which an attack climbs; give one that has")
        (gradient,) = torch.autograd.grad(F.nll_loss(found, y, reduction="sum"), delta)
    return unit(gradient), found.detach().argmax(1)

"""The objectives that a recipe can name, as `objective: {name: ..., arguments}`.

Each function below builds one objective. Its keyword arguments are the arguments in a recipe, and its docstring
describes them in `maxup train --help` and docs/settings.md. To add an objective, write a function and list it in
`OBJECTIVES`.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from maxup.errors import RecipeError, unknown_name
from maxup.lab.limits import COPIES, STEPS, Limit
from maxup.lab.recipes.schema import Recipe, Spec, gaussian_sigma

if TYPE_CHECKING:
    from maxup.objectives.base import Objective

RADIUS, EPOCHS, NORMS = Limit(0, 1e9), Limit(0, 10**6, whole=True), (2.0, math.inf)
UNBOUNDED = ("gaussian", "uniform_ball", "lighting")  # perturbations that can move pixels out of [0, 1]


@dataclass
class ObjectiveContext:
    """What a task provides to build its objective.

    Attributes:
        perturbation: P(.|x), or None if the recipe's `perturb` is empty.
        steps: Returns the number of steps in the first n epochs.
        options: More arguments of the objective, such as `forward` and `loss_fn`.
        clip: Range of the network's input, if it takes pixels in [0, 1].
    """

    recipe: Recipe
    perturbation: Any
    steps: Callable[[int], int]
    options: dict[str, Any] = field(default_factory=dict)
    clip: tuple[float, float] | None = None

    def require_perturbation(self) -> Any:
        """Return the perturbation, for an objective that draws copies."""
        if self.perturbation is None:
            name = self.recipe.objective["name"]
            raise RecipeError(f"objective {name!r} draws copies, but the recipe's perturb is empty; set perturb")
        return self.perturbation

    def warmup_steps(self, warmup: int, start: float) -> int:
        """Return the number of steps with m = 1 at the start."""
        return self.steps(epochs_without_selection({"warmup": warmup, "start": start}, self.recipe.epochs))


def cap_warmup(requested: int, epochs: int) -> int:
    """Return the number of warmup epochs: as requested, but at most about a quarter of a short run.

    Example:
        >>> [cap_warmup(5, epochs) for epochs in (200, 60, 12, 3, 1)]
        [5, 5, 3, 1, 0]
    """
    return min(requested, max(epochs // 4, min(1, epochs - 1)))


def epochs_without_selection(objective: Spec, epochs: int) -> int:
    """Return the number of epochs with m = 1 at the start.

    Example:
        >>> epochs_without_selection({"name": "maxup", "warmup": 5, "start": 0.5}, 30)
        15
    """
    return max(cap_warmup(objective.get("warmup", 0), epochs), round(objective.get("start", 0) * epochs))


def warmup_note(recipe: Recipe) -> str | None:
    """Return a sentence that says that the warmup is shortened, or None if it is not.

    Example:
        >>> warmup_note(Recipe(objective={"name": "maxup", "warmup": 30}, epochs=60))
        'objective.warmup is 15 instead of 30 epochs, at most a quarter of the run; objective.start can be longer'
    """
    warmup = recipe.objective.get("warmup", 0)
    used = epochs_without_selection(recipe.objective, recipe.epochs)
    limit = "at most a quarter of the run; objective.start can be longer"
    return f"objective.warmup is {used} instead of {warmup} epochs, {limit}" if used < warmup else None


def standard(context: ObjectiveContext) -> "Objective":
    """Train on one copy per example: MaxUp with m = 1."""
    from maxup.objectives.maxup import MaxUp

    return MaxUp(context.require_perturbation(), m=1, **context.options)


def maxup(
    context: ObjectiveContext,
    *,
    m: Annotated[int, COPIES] = 4,
    warmup: Annotated[int, EPOCHS] = 5,
    start: Annotated[float, Limit(0, 1)] = 0.0,
    norm: Literal["batch", "running"] = "batch",
    strategy: Literal["recompute", "retain", "auto"] = "recompute",
    chunk_size: Annotated[int, COPIES] = 1,
    masks: Literal["shared", "independent"] = "shared",
    dropout: bool = True,
    compile: bool = False,
    fast: bool = False,
    shortlist: Annotated[int, COPIES] | None = None,
    score: Literal["loss", "kl", "easiest"] = "loss",
    unit: Literal["column", "token", "batch"] = "column",
) -> "Objective":
    """Train on the worst of m copies per example.

    Args:
        context: What the task provides.
        m: Number of copies per example.
        warmup: Number of epochs with m = 1 at the start, at most a quarter of the run. The paper uses 5.
        start: Fraction of the run with m = 1 at the start, rounded to whole epochs, unless `warmup` is longer. 0.5
            halves the cost of selection.
        norm: Statistics that BatchNorm uses to score copies.
        strategy: recompute forwards the worst copies again. retain keeps the graphs of all copies. auto measures both.
        chunk_size: Number of copies per scoring pass.
        masks: Dropout masks: shared by the copies of an example, or independent per copy, which requires retain.
        dropout: Whether dropout is active while copies are scored. false is cheaper, and approximate. Not for language
            models.
        compile: Compile the scoring passes.
        fast: Score with running statistics and without dropout, and images from 96 x 96 pixels at half size. GPU: 4
            copies per compiled pass. Not for language models.
        shortlist: Score only this many copies, those with the highest first-order estimate of the loss. For small noise
            and a large m. Not for language models.
        score: What to compare copies by. kl subtracts the entropy of mixed labels from the loss. easiest selects the
            copy with the lowest loss, as a control.
        unit: Language task: choose the worst copy per column of a window, per token, or per batch.
    """
    from maxup.objectives.maxup import MaxUp
    from maxup.objectives.schedules import warmup as warmed_up

    schedule = warmed_up(m, steps=context.warmup_steps(warmup, start))
    settings: dict[str, Any] = {"strategy": strategy, "chunk_size": chunk_size, "masks": masks, "compile": compile}
    if context.recipe.task == "vision":
        settings |= {"norm": norm, "score": score, "fast": fast, "dropout": dropout, "shortlist": shortlist}
    elif invalid := [key for key, on in {"fast": fast, "shortlist": shortlist, "dropout": not dropout}.items() if on]:
        raise RecipeError(
            f"objective.{invalid[0]} needs the vision task, but the task is language; remove objective.{invalid[0]}"
        )
    return MaxUp(context.require_perturbation(), m=schedule, **settings, **context.options)


def average(
    context: ObjectiveContext,
    *,
    m: Annotated[int, COPIES] = 4,
    warmup: Annotated[int, EPOCHS] = 5,
    start: Annotated[float, Limit(0, 1)] = 0.0,
) -> "Objective":
    """Train on the average over m copies per example.

    Args:
        context: What the task provides.
        m: Number of copies per example.
        warmup: Number of epochs with m = 1 at the start, at most a quarter of the run.
        start: Fraction of the run with m = 1 at the start, rounded to whole epochs, unless `warmup` is longer.
    """
    from maxup.objectives.average import Average
    from maxup.objectives.schedules import warmup as warmed_up

    return Average(context.require_perturbation(), m=warmed_up(m, steps=context.warmup_steps(warmup, start)))


def adversarial(
    context: ObjectiveContext,
    *,
    radius: Annotated[float, RADIUS] = 0.5,
    p: Annotated[float, NORMS] = 2.0,
    steps: Annotated[int, STEPS] = 10,
) -> "Objective":
    """PGD adversarial training. P(.|x) is drawn once per example.

    Args:
        context: What the task provides.
        radius: Radius of the ball, in the units of the network's input.
        p: Norm of the ball, 2 or .inf.
        steps: Number of gradient steps of the attack.
    """
    from maxup.objectives.adversarial import Adversarial

    recipe = context.recipe
    bounded = not any(spec["name"] in UNBOUNDED for spec in recipe.augment + recipe.perturb)
    return Adversarial(radius, p=p, steps=steps, clip=context.clip if bounded else None)


def hard_examples(context: ObjectiveContext, *, keep: Annotated[float, Limit(0, 1, above=True)] = 0.25) -> "Objective":
    """Train on the hardest examples of a batch. P(.|x) is drawn once per example.

    Args:
        context: What the task provides.
        keep: Fraction of a batch to train on.
    """
    from maxup.objectives.hard_examples import HardExamples

    return HardExamples(keep)


def smoothadv(
    context: ObjectiveContext,
    *,
    radius: Annotated[float, RADIUS] = 0.5,
    attack: Literal["pgd", "ddn"] = "pgd",
    steps: Annotated[int, STEPS] = 10,
    samples: Annotated[int, COPIES] = 1,
    warmup: Annotated[int, EPOCHS] = 10,
) -> "Objective":
    """SmoothAdv: adversarial training of the smoothed classifier. `perturb` must be Gaussian noise on pixels.

    Args:
        context: What the task provides.
        radius: Radius of the l2 ball, in the units of the input.
        attack: pgd ascends within the ball. ddn searches for the shortest perturbation that changes the prediction.
        steps: Number of gradient steps of the attack.
        samples: Number of noise samples per example, in the attack and in training.
        warmup: Number of epochs until the radius reaches its full value, at most a quarter of the run.
    """
    from maxup.objectives.smoothadv import SmoothAdv, rising

    recipe, sigma = context.recipe, gaussian_sigma(context.recipe)
    if sigma is None:
        raise RecipeError(
            "objective 'smoothadv' attacks pixels under Gaussian noise, but the recipe has perturb "
            f"{recipe.perturb} and model.normalize {recipe.model.normalize}; set perturb to "
            "[{name: gaussian, sigma: ...}] and model.normalize to true"
        )
    schedule = rising(radius, epochs=cap_warmup(warmup, recipe.epochs), steps_per_epoch=context.steps(1))
    return SmoothAdv(sigma, schedule, samples=samples, steps=steps, attack=attack)


OBJECTIVES: dict[str, Callable[..., "Objective"]] = {
    function.__name__: function for function in (standard, maxup, average, adversarial, hard_examples, smoothadv)
}
DRAW_ONCE = ("adversarial", "hard_examples")  # objectives without copies: the task draws P(.|x) once per example


def build_objective(context: ObjectiveContext) -> "Objective":
    """Build the objective of a recipe."""
    arguments = {k: v for k, v in context.recipe.objective.items() if k != "name"}
    return OBJECTIVES[context.recipe.objective["name"]](context, **arguments)


def arguments_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments of an objective, with their types and defaults."""
    if name not in OBJECTIVES:
        raise RecipeError(unknown_name(str(name), OBJECTIVES, "objective"))
    parameters = inspect.signature(OBJECTIVES[name]).parameters
    return {k: v for k, v in parameters.items() if k != "context"}

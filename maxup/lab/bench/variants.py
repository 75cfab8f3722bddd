"""The training steps to compare. `settings.py` lists their names."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from maxup.batch import Batch, Draw, cat, tile
from maxup.errors import RecipeError, unknown_name
from maxup.lab.bench.settings import BY_M, MAXUP, NAMES
from maxup.lab.bench.workload import Workload
from maxup.lab.train.sam import sam_backward
from maxup.losses import mean_loss
from maxup.objectives.adversarial import Adversarial
from maxup.objectives.average import Average
from maxup.objectives.maxup import MaxUp
from maxup.objectives.running_max import RunningMax
from maxup.perturb.in_model import clear

RADIUS, RHO = 0.1, 0.05  # of PGD and of SAM; they do not change the cost


@dataclass
class Variant:
    """One way to train on a batch.

    Args:
        name: "standard", or one of `NAMES`.
        m: Copies per example; None if it does not depend on m.
        backward: Computes the gradients of a batch and returns the loss.
        generator: Source of the draws.
        select: Returns the winners of a batch, if the variant selects.
        settings: Arguments of MaxUp.
        kept: Returns the bytes on the GPU that the variant keeps between steps.
        note: Returns what a reader of its numbers must know, or "".
    """

    name: str
    m: int | None
    backward: Callable[[Batch], Tensor]
    generator: Generator
    select: Callable[[Batch], RunningMax] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    kept: Callable[[], int] = lambda: 0
    note: Callable[[], str] = lambda: ""

    @property
    def key(self) -> str:
        """Return a name that is unique in a run."""
        return self.name if self.m is None else f"{self.name}, m = {self.m}"


def make_variants(work: Workload, names: Sequence[str], ms: Sequence[int]) -> list[Variant]:
    """Return the standard step and the named variants, for every m if they depend on it."""
    for name in names:
        if name not in NAMES:
            raise RecipeError(unknown_name(name, NAMES, "variant"))
    chosen = [name for name in NAMES if name in names]
    variants = [standard(work)]
    for m in ms:
        variants += [MAKE.get(name, maxup)(work, name, m) for name in chosen if name in BY_M]
    return variants + [MAKE[name](work, name, None) for name in chosen if name not in BY_M]


def standard(work: Workload) -> Variant:
    """Train on one copy per example, by a plain loop."""
    generator = work.generator()

    def loss(batch: Batch) -> Tensor:
        losses, target, _ = forward_copies(work, batch, generator, 1)
        return mean_loss(work.loss_fn, losses, target)

    return Variant("standard", 1, _backward(work, loss), generator)


def maxup(work: Workload, name: str, m: int) -> Variant:
    """Train on the worst of m copies, by MaxUp with the settings of this name."""
    generator, settings = work.generator(), MAXUP[name]

    @cache  # built in the first step, so that settings that do not suit the workload are noted like other errors
    def objective() -> MaxUp:
        if settings.get("capture") and work.device.type != "cuda":
            raise RecipeError(f"{name} needs a GPU; leave it out of --variants")
        options: Any = {"loss_fn": work.loss_fn, "forward": work.forward, "generator": generator, **settings}
        return MaxUp(work.perturbation, m, **options)

    def select(batch: Batch) -> RunningMax:
        with work.autocast():
            worst = objective().run(work.model, *batch).worst
        assert worst is not None
        return worst

    backward = _backward(work, lambda batch: objective()(work.model, *batch))
    return Variant(
        name, m, backward, generator, select, settings,
        kept=lambda: objective().graph_bytes,
        note=lambda: objective().why_eager,
    )  # fmt: skip


def average(work: Workload, name: str, m: int) -> Variant:
    """Train on the average of m copies."""
    generator = work.generator()
    objective = Average(work.perturbation, m, loss_fn=work.loss_fn, forward=work.forward, generator=generator)
    return Variant(name, m, _backward(work, lambda batch: objective(work.model, *batch)), generator)


def keep_all_graphs(work: Workload, name: str, m: int) -> Variant:
    """Train on the worst of m copies as public code does: one wide batch with its graph, then the maximum."""
    generator = work.generator()

    def loss(batch: Batch) -> Tensor:
        losses, _, _ = forward_copies(work, batch, generator, m)  # (m * B,)
        return losses.view(m, -1).max(0).values.mean()

    def select(batch: Batch) -> RunningMax:
        worst = RunningMax()
        with work.autocast():
            losses, target, draws = forward_copies(work, batch, generator, m)
        worst.update(draws, losses, target)
        return worst

    return Variant(name, m, _backward(work, loss), generator, select)


def pgd7(work: Workload, name: str, m: None) -> Variant:
    """Adversarial training of one copy per example, with 7 gradient steps."""
    generator = work.generator()
    objective = Adversarial(
        RADIUS, p=math.inf, steps=7, loss_fn=work.loss_fn, forward=work.forward, generator=generator
    )

    def loss(batch: Batch) -> Tensor:
        x, y = work.perturbation.apply(batch, work.perturbation.draw(batch, generator))
        try:
            return objective(work.model, x, y)
        finally:
            clear(work.perturbation)

    return Variant(name, m, _backward(work, loss), generator)


def sam(work: Workload, name: str, m: None) -> Variant:
    """Sharpness-aware minimization on one copy per example."""
    generator = work.generator()

    def backward(batch: Batch) -> Tensor:
        x, y = work.perturbation.apply(batch, work.perturbation.draw(batch, generator))

        def loss() -> Tensor:
            with work.autocast():
                return mean_loss(work.loss_fn, work.loss_fn(work.forward(work.model, x), y), y)

        try:
            return sam_backward(work.model, loss, torch.Tensor.backward, rho=RHO)
        finally:
            clear(work.perturbation)

    return Variant(name, m, backward, generator)


MAKE: dict[str, Callable[..., Variant]] = {f.__name__: f for f in (average, keep_all_graphs, pgd7, sam)}


def forward_copies(work: Workload, batch: Batch, generator: Generator, m: int) -> tuple[Tensor, Any, list[Draw]]:
    """Forward m copies as one wide batch. Return losses and targets, (m * B, ...) each, and the draws."""
    draws = [work.perturbation.draw(batch, generator) for _ in range(m)]
    x, y = work.perturbation.apply(tile(batch, m), cat(draws))
    try:
        return work.loss_fn(work.forward(work.model, x), y), y, draws
    finally:
        clear(work.perturbation)


def _backward(work: Workload, loss: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
    def backward(batch: Batch) -> Tensor:
        with work.autocast():
            value = loss(batch)
        value.backward()
        return value.detach()

    return backward

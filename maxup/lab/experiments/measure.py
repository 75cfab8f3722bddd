"""What `maxup compare` measures: accuracy (clean, on the worst copy, under attack) and the input-gradient norm."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup import theory
from maxup.batch import Batch
from maxup.objectives.adversarial import Adversarial
from maxup.perturb.in_model import in_model_parts


@torch.no_grad()
def correct(model: nn.Module, batch: Batch) -> Tensor:
    """Whether the prediction is correct, (B,). For soft targets: whether it is the most probable class."""
    x, y = batch
    return model(x).argmax(1) == (y.argmax(1) if y.is_floating_point() else y)


def correct_on_all(model: nn.Module, batch: Batch, perturbation: Any, copies: int, generator: Generator) -> Tensor:
    """Whether all of `copies` perturbed copies are classified correctly, (B,)."""
    all_correct = torch.ones(len(batch[1]), dtype=torch.bool, device=batch[1].device)
    for _ in range(copies):
        all_correct &= correct(model, perturbation.apply(batch, perturbation.draw(batch, generator)))
    return all_correct


def correct_under_attack(model: nn.Module, batch: Batch, attack: Adversarial, generator: Generator) -> Tensor:
    """Whether the attacked inputs are classified correctly, (B,)."""
    return correct(model, attack.attack(model, batch, attack.perturbation.draw(batch, generator)))


def gradient_norm(model: nn.Module, batch: Batch) -> Tensor:
    """Return the norm of the loss gradient by the input, (B,). By Theorem 1, MaxUp penalizes it."""
    return theory.penalty(model, *batch, m=2, sigma=1.0).gradient_norm


def merge_last_single(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches. A final batch of one example is merged into the previous batch: CutMix and MixUp need pairs.

    Example:
        >>> [len(y) for _, y in merge_last_single((torch.zeros(n), torch.zeros(n)) for n in (4, 4, 1))]
        [4, 5]
    """
    held: tuple[Tensor, Tensor] | None = None
    for batch in batches:
        if held is not None and len(batch[1]) > 1:
            yield held
            held = None
        held = batch if held is None else (torch.cat([held[0], batch[0]]), torch.cat([held[1], batch[1]]))
    if held is not None:
        yield held


def measure(
    model: nn.Module, batches: Iterable[Batch], perturbation: Any, *, copies: int, attack: Adversarial, seed: int
) -> dict[str, float]:
    """Return the accuracies in percent and the mean gradient norm.

    The seed sets the copies and the starting points of the attack, so that models measured with one seed get the same
    ones. A perturbation inside the model is off in evaluation, so "worst" is missing for it. Token ids have no
    gradient, so "attacked" and "gradient" are missing for them.

    Args:
        model: The model, in evaluation mode.
        batches: Batches (x, y).
        perturbation: P(.|x).
        copies: Copies per example. "worst" counts an example only if all of them are classified correctly.
        attack: Runs the attack that "attacked" measures.
        seed: Seed of the copies and of the attack.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    draws: Generator | None = None
    for batch in batches:
        if draws is None:
            draws, starts = (Generator(batch[1].device).manual_seed(seed + k) for k in (0, 1))
        values = {"clean": correct(model, batch)}
        if not in_model_parts(perturbation):
            values["worst"] = correct_on_all(model, batch, perturbation, copies, draws)
        if batch[0].is_floating_point():
            values["attacked"] = correct_under_attack(model, batch, attack, starts)
            values["gradient"] = gradient_norm(model, batch)
        sums = {name: sums.get(name, 0) + value.double().sum() for name, value in values.items()}
        count += len(batch[1])
    return {name: float(value) / count * (1 if name == "gradient" else 100) for name, value in sums.items()}

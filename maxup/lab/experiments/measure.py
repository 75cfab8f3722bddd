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
def right(model: nn.Module, batch: Batch) -> Tensor:
    """Whether the prediction is the most probable class of the target, (B,)."""
    x, y = batch
    return model(x).argmax(1) == (y.argmax(1) if y.is_floating_point() else y)


def right_on_all(model: nn.Module, batch: Batch, perturbation: Any, copies: int, generator: Generator) -> Tensor:
    """Whether all of `copies` perturbed copies are classified correctly, (B,).

    Example:
        >>> from maxup import Gaussian
        >>> x, y = torch.tensor([[9.0, 0.0], [0.1, 0.0]]), torch.tensor([0, 0])
        >>> right_on_all(nn.Identity(), (x, y), Gaussian(1.0), 20, Generator().manual_seed(0))
        tensor([ True, False])
    """
    all_right = torch.ones(len(batch[1]), dtype=torch.bool, device=batch[1].device)
    for _ in range(copies):
        all_right &= right(model, perturbation.apply(batch, perturbation.draw(batch, generator)))
    return all_right


def right_under_attack(model: nn.Module, batch: Batch, attack: Adversarial, generator: Generator) -> Tensor:
    """Whether the attacked inputs are classified correctly, (B,)."""
    return right(model, attack.attack(model, batch, attack.perturbation.draw(batch, generator)))


def gradient_norm(model: nn.Module, batch: Batch) -> Tensor:
    """Return the norm of the loss gradient by the input, (B,). By Theorem 1, MaxUp penalizes it."""
    return theory.penalty(model, *batch, m=2, sigma=1.0).gradient_norm


def join_lone(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches. A batch of one example is joined to the one before, because some perturbations mix pairs.

    Example:
        >>> [len(y) for _, y in join_lone((torch.zeros(n), torch.zeros(n)) for n in (4, 4, 1))]
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
    ones. A perturbation inside the model is off in evaluation, so "worst" is missing for it.

    Args:
        model: The model, in evaluation mode.
        batches: Batches (x, y).
        perturbation: P(.|x).
        copies: Copies per example. "worst" counts an example only if all of them are classified correctly.
        attack: The attack.
        seed: Seed of the copies and of the attack.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    draws: Generator | None = None
    for batch in batches:
        if draws is None:
            draws, starts = (Generator(batch[1].device).manual_seed(seed + k) for k in (0, 1))
        values = {"clean": right(model, batch)}
        if not in_model_parts(perturbation):
            values["worst"] = right_on_all(model, batch, perturbation, copies, draws)
        values["attacked"] = right_under_attack(model, batch, attack, starts)
        values["gradient"] = gradient_norm(model, batch)
        sums = {name: sums.get(name, 0) + value.double().sum() for name, value in values.items()}
        count += len(batch[1])
    return {name: float(value) / count * (1 if name == "gradient" else 100) for name, value in sums.items()}

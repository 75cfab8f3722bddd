"""How faithful a selection is to exact scoring, on the same draws."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from maxup.batch import Batch, Draw, SharedDraw
from maxup.isolation import remember_values
from maxup.lab.bench.variants import Variant, maxup
from maxup.lab.bench.workload import Workload
from maxup.rng import remember_rng


@dataclass
class Fidelity:
    """A selection compared with exact scoring of the same copies."""

    gap: float
    """Mean difference, by exact scoring, between the loss of the selected copy and the mean loss of all copies."""
    gap_kept: float | None
    """`gap` as a share of the gap of exact scoring. None if all copies of every example have the same loss."""
    agreement: float
    """Share of examples whose selected copy has the highest loss by exact scoring."""


def compare(losses: Tensor, copies: Tensor) -> Fidelity:
    """Compare selected copies with exact scoring.

    Args:
        losses: Losses of all copies by exact scoring, (m, N).
        copies: Index of the selected copy of every example, (N,).

    Example:
        >>> compare(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 8.0]]), torch.tensor([1, 0]))
        Fidelity(gap=0.0, gap_kept=0.0, agreement=0.5)
    """
    losses = losses.double()
    chosen, best, mean = losses.gather(0, copies[None])[0], losses.max(0).values, losses.mean(0)  # (N,) each
    gap, exact = float((chosen - mean).mean()), float((best - mean).mean())
    return Fidelity(gap, gap / exact if exact > 0 else None, float((chosen == best).double().mean()))


def measure_fidelity(work: Workload, m: int, variants: Iterable[Variant], batches: int) -> dict[str, Fidelity | None]:
    """Compare what variants select with what exact scoring selects, over some batches. The model does not change.

    Before every selection, the draws, the random states and the buffers of the model are set to the same values.

    Returns:
        By the variants' keys. None if a variant draws other copies than exact scoring, which makes them incomparable.
    """
    found = {variant.key: variant for variant in variants if variant.select is not None}
    if not found:
        return {}
    exact = maxup(work, "maxup", m)
    same, scores, chosen = dict.fromkeys(found, True), list[Tensor](), {key: list[Tensor]() for key in found}
    restore = remember_values(work.model.buffers())
    for number in range(batches):
        batch = work.batches(number)
        rewind = remember_rng([work.device])
        reference = _select(exact, batch, number, restore, rewind)
        scores.append(torch.stack(reference.losses))  # (m, B)
        for key, variant in found.items():
            worst = _select(variant, batch, number, restore, rewind)
            chosen[key].append(worst.copy_of_all)
            agree = worst.copy_of_all == reference.copy_of_all  # (B,)
            same[key] = same[key] and same_draws(worst.draw, reference.draw, agree)
    losses = torch.cat(scores, 1)  # (m, N)
    return {key: compare(losses, torch.cat(chosen[key])) if same[key] else None for key in found}


def same_draws(a: Draw, b: Draw, where: Tensor) -> bool:
    """Whether two draws are equal for the examples in the mask `where`, (B,).

    Example:
        >>> same_draws(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([True, False]))
        True
    """
    first, second = (tree_leaves(draw, is_leaf=lambda leaf: isinstance(leaf, SharedDraw)) for draw in (a, b))
    return len(first) == len(second) and all(
        torch.equal(_rows(one)[where], _rows(other)[where]) for one, other in zip(first, second, strict=True)
    )


def _rows(leaf: Any) -> Tensor:
    """Return a leaf of a draw as one row per example."""
    rows: Tensor = leaf.values[leaf.index] if isinstance(leaf, SharedDraw) else leaf
    return rows


def _select(variant: Variant, batch: Batch, seed: int, restore: Callable[[], None], rewind: Callable[[], None]) -> Any:
    assert variant.select is not None
    variant.generator.manual_seed(seed)
    worst = variant.select(batch)
    restore()
    rewind()
    return worst


def to_record(fidelity: Fidelity | None) -> dict[str, float | None]:
    """Return the fields for a result file."""
    return dict(vars(fidelity)) if fidelity else dict.fromkeys(Fidelity.__annotations__)

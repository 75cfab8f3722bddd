"""Several perturbations, one after the other."""

from typing import Any

from torch import Generator
from torch.utils._pytree import tree_flatten, tree_unflatten

from maxup.batch import Batch, Draw, is_batched
from maxup.perturb.base import Perturbation
from maxup.perturb.in_model import InModelPerturbation
from maxup.validate import check_perturbation


class Compose(Perturbation):
    """Apply perturbations in order; those inside the model, which act later, come last whatever their place.

    The draw is the result, and the draws of the parts attached to the model. It cannot be the list of all the parts'
    draws: CutMix after a crop pastes a partner as *this copy* cropped it, which the partner's own winner need not be.

    Args:
        perturbations: Any number of them, objects with `draw` and `apply`.

    Example:
        >>> import torch
        >>> from maxup import Cutout, Gaussian
        >>> x, y = Compose(Cutout(8), Gaussian(0.1))(torch.rand(4, 3, 32, 32), torch.zeros(4))
        >>> x.shape
        torch.Size([4, 3, 32, 32])
    """

    def __init__(self, *perturbations: Any) -> None:
        if not perturbations:
            raise ValueError("Compose() got nothing to compose; pass at least one perturbation")
        nested = [part.perturbations if isinstance(part, Compose) else [part] for part in perturbations]
        self.perturbations: list[Any] = [check_perturbation(part) for parts in nested for part in parts]
        self.inside = [part for part in self.perturbations if isinstance(part, InModelPerturbation)]

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, list[Draw]]:
        inside, given = [], batch
        for part in self.perturbations:
            if part in self.inside:  # it sees the batch itself, by which ManifoldMixup knows the copies of one batch
                inside.append(part.draw(given, generator))
            else:
                batch = part.apply(batch, part.draw(batch, generator))
        return {"result": [leaf for leaf in tree_flatten(batch)[0] if is_batched(leaf)], "inside": inside}

    def apply(self, batch: Batch, draw: dict[str, list[Draw]]) -> Batch:
        leaves, spec = tree_flatten(batch)
        result = iter(draw["result"])
        batch = tree_unflatten([next(result) if is_batched(leaf) else leaf for leaf in leaves], spec)
        for part, inner in zip(self.inside, draw["inside"], strict=True):
            batch = part.apply(batch, inner)
        return batch

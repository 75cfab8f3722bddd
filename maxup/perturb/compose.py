"""Compose: several perturbations in sequence."""

from typing import Any

from torch import Generator
from torch.utils._pytree import tree_flatten, tree_unflatten

from maxup.batch import Batch, Draw, is_batched
from maxup.perturb.base import Perturbation
from maxup.perturb.in_model import InModelPerturbation
from maxup.validate import check_perturbation


class Compose(Perturbation):
    """Apply perturbations in order. In-model perturbations act in the forward pass, so they always come last.

    The draw is the perturbed batch, plus the draws of the in-model perturbations. Storing the draws of the parts is not
    enough: CutMix after a crop pastes the partner as cropped in this copy, but another copy of the partner may win.

    Args:
        perturbations: One or more objects with `draw` and `apply`.

    Example:
        >>> import torch
        >>> from maxup import Cutout, Gaussian
        >>> x, y = Compose(Cutout(8), Gaussian(0.1))(torch.rand(4, 3, 32, 32), torch.zeros(4))
        >>> x.shape
        torch.Size([4, 3, 32, 32])
    """

    def __init__(self, *perturbations: Any) -> None:
        if not perturbations:
            raise ValueError("Compose() got no perturbations; pass at least one")
        nested = [part.perturbations if isinstance(part, Compose) else [part] for part in perturbations]
        self.perturbations: list[Any] = [check_perturbation(part) for parts in nested for part in parts]
        self.inside = [part for part in self.perturbations if isinstance(part, InModelPerturbation)]

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, list[Draw]]:
        inside, original = [], batch
        for part in self.perturbations:
            if part in self.inside:
                # The original batch, by which ManifoldMixup recognizes the copies of one batch.
                inside.append(part.draw(original, generator))
            else:
                batch = part.apply(batch, part.draw(batch, generator))
        (result, structure), (_, expected) = tree_flatten(batch), tree_flatten(original)
        if structure != expected:  # apply puts the result into the structure of its batch
            raise TypeError(
                f"{self!r} changes the structure of (x, y), for example from a tensor to a dict; a Compose cannot do "
                "that, so use the part that does it alone, or change the structure before"
            )
        return {"result": [leaf for leaf in result if is_batched(leaf)], "inside": inside}

    def apply(self, batch: Batch, draw: dict[str, list[Draw]]) -> Batch:
        leaves, spec = tree_flatten(batch)
        result = iter(draw["result"])
        batch = tree_unflatten([next(result) if is_batched(leaf) else leaf for leaf in leaves], spec)
        for part, inner in zip(self.inside, draw["inside"], strict=True):
            batch = part.apply(batch, inner)
        return batch

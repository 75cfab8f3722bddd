"""Several perturbations, one after the other."""

from torch import Generator

from maxup.perturb.base import Perturbation
from maxup.perturb.draws import Batch, Draw


class Compose(Perturbation):
    """Apply perturbations in order. The draw is the list of their draws.

    Args:
        perturbations: Any number of them, objects with `draw` and `apply`.

    Example:
        >>> import torch
        >>> from maxup import Cutout, Gaussian
        >>> x, y = Compose(Cutout(8), Gaussian(0.1))(torch.rand(4, 3, 32, 32), torch.zeros(4))
        >>> x.shape
        torch.Size([4, 3, 32, 32])
    """

    def __init__(self, *perturbations: Perturbation) -> None:
        if not perturbations:
            raise ValueError("Compose() got nothing to compose; pass at least one perturbation")
        self.perturbations = perturbations

    def draw(self, batch: Batch, generator: Generator | None) -> list[Draw]:
        draws = []
        for perturbation in self.perturbations:  # each draws for the batch as the ones before leave it
            draws.append(perturbation.draw(batch, generator))
            batch = perturbation.apply(batch, draws[-1])
        return draws

    def apply(self, batch: Batch, draw: list[Draw]) -> Batch:
        for perturbation, part in zip(self.perturbations, draw, strict=True):
            batch = perturbation.apply(batch, part)
        return batch

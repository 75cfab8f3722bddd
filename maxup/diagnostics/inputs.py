"""What the doctor examines: the model, batch, loss and perturbation that a user's function returns."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import get_leaves
from maxup.errors import InputsError, unknown_name
from maxup.objectives.base import Forward, LossFn, call, cross_entropy
from maxup.perturb.noise import Gaussian
from maxup.validate import check_batch, check_model, check_perturbation, check_values


@dataclass
class Inputs:
    """A model and how it is trained."""

    model: nn.Module
    batch: tuple[Any, Any]
    """(x, y)."""
    loss_fn: LossFn = cross_entropy
    perturbation: Any = None
    """Default: Gaussian noise of a tenth of x's own deviation."""
    forward: Forward = call

    def __post_init__(self) -> None:
        if not isinstance(self.batch, (tuple, list)) or len(self.batch) != 2:
            raise InputsError(f"batch is a {type(self.batch).__name__}; it must be the pair (x, y)")
        self.batch = tuple(self.batch)
        for name in ("loss_fn", "forward"):
            if not callable(getattr(self, name)):
                raise InputsError(f"{name} is a {type(getattr(self, name)).__name__}; it must be a function")
        try:
            check_model(self.model)
            check_batch(self.batch)
            check_values(self.batch[0])
            self.by_default = self.perturbation is None  # that the user gave none
            if self.by_default:
                self.perturbation = _noise(self.batch[0])
            check_perturbation(self.perturbation)
        except (TypeError, ValueError) as error:
            raise InputsError(str(error)) from None


def make_inputs(returned: Any) -> Inputs:
    """A case from a dict with the names of its fields, or a tuple in their order.

    Example:
        >>> make_inputs((nn.Linear(3, 2), (torch.rand(4, 3), torch.zeros(4).long()))).loss_fn.__name__
        'cross_entropy'
    """
    names = [field.name for field in fields(Inputs)]
    if isinstance(returned, (tuple, list)):
        if not 2 <= len(returned) <= len(names):
            raise InputsError(
                f"the function returned {len(returned)} things; it must return {', '.join(names)} in order"
            )
        returned = dict(zip(names, returned, strict=False))
    if not isinstance(returned, Mapping):
        raise InputsError(
            f"the function returned something of type {type(returned).__name__}; it must return a dict with model "
            "and batch"
        )
    for key in returned:
        if key not in names:
            raise InputsError(unknown_name(str(key), names, "key"))
    if missing := {"model", "batch"} - set(returned):
        raise InputsError(f"the function returned no {min(missing)}; it must return model and batch, the pair (x, y)")
    return Inputs(**{key: value for key, value in returned.items() if value is not None})


def _noise(x: Any) -> Gaussian:
    try:
        floating: list[Tensor] = [leaf for leaf in get_leaves(x) if leaf.is_floating_point()]
    except (TypeError, ValueError):
        floating = []
    if not floating:
        raise InputsError(
            "x holds no floating tensor to add noise to; return a perturbation too, such as EmbeddingDropout"
        )
    values = torch.cat([leaf.flatten() for leaf in floating]).float()
    if not bool(values.isfinite().all()):
        raise InputsError("x holds infinite values, or some too large for float32; clean the data first")
    return Gaussian(0.1 * float(values.std(correction=0)) or 0.1)

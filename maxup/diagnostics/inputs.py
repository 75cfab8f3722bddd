"""The inputs of the checks: a model, a batch, a loss, a perturbation and how the model is called."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import get_leaves
from maxup.errors import InputsError, a_type, unknown_name
from maxup.objectives.base import Forward, LossFn, call_model, cross_entropy
from maxup.perturb.noise import Gaussian
from maxup.validate import check_batch, check_model, check_perturbation, check_values


@dataclass
class Inputs:
    """A model and how it is trained.

    Raises:
        InputsError: If an input is invalid.

    Example:
        >>> inputs = Inputs(nn.Linear(3, 2), (torch.rand(4, 3), torch.tensor([0, 1, 0, 1])))
        >>> inputs.loss_fn.__name__, type(inputs.perturbation).__name__
        ('cross_entropy', 'Gaussian')
    """

    model: nn.Module
    batch: tuple[Any, Any]
    """The pair (x, y)."""
    loss_fn: LossFn = cross_entropy
    """Loss per example, loss_fn(output, y) -> (B,)."""
    perturbation: Any = None
    """Default: Gaussian noise with a tenth of the standard deviation of x."""
    forward: Forward = call_model
    """How to call the model, forward(model, x)."""

    def __post_init__(self) -> None:
        if not isinstance(self.batch, (tuple, list)) or len(self.batch) != 2:
            raise InputsError(f"batch is {a_type(self.batch)}; it must be the pair (x, y)")
        self.batch = tuple(self.batch)
        for name in ("loss_fn", "forward"):
            if not callable(getattr(self, name)):
                raise InputsError(f"{name} is {a_type(getattr(self, name))}; it must be a function")
        try:
            check_model(self.model)
            check_batch(self.batch)
            check_values(self.batch[0])
            self.default_noise = self.perturbation is None
            if self.default_noise:
                self.perturbation = _noise(self.batch[0])
            check_perturbation(self.perturbation)
        except (TypeError, ValueError) as error:
            raise InputsError(str(error)) from None


def make_inputs(returned: Any) -> Inputs:
    """Build `Inputs` from what a user's function returned: a dict of its fields, or a tuple in the same order."""
    names = [field.name for field in fields(Inputs)]
    if isinstance(returned, (tuple, list)):
        if not 2 <= len(returned) <= len(names):
            raise InputsError(
                f"the function returned {len(returned)} values; it must return {', '.join(names)}, in this order"
            )
        returned = dict(zip(names, returned, strict=False))
    if not isinstance(returned, Mapping):
        raise InputsError(
            f"the function returned {a_type(returned)}; it must return a dict with the keys model and batch"
        )
    for key in returned:
        if key not in names:
            raise InputsError(unknown_name(str(key), names, "key"))
    if missing := {"model", "batch"} - set(returned):
        raise InputsError(f"the returned dict has no {min(missing)!r}; it must have the keys model and batch, (x, y)")
    return Inputs(**{key: value for key, value in returned.items() if value is not None})


def _noise(x: Any) -> Gaussian:
    """Return the default perturbation for x."""
    try:
        leaves: list[Tensor] = [leaf for leaf in get_leaves(x) if leaf.is_floating_point()]
    except (TypeError, ValueError):
        leaves = []
    if not leaves:
        raise InputsError(
            "x has no floating-point tensor to add noise to; pass a perturbation too, such as EmbeddingDropout"
        )
    values = torch.cat([leaf.flatten() for leaf in leaves]).float()
    if not bool(values.isfinite().all()):
        raise InputsError("x holds values that are infinite or too large for float32; clean the data first")
    return Gaussian(float(f"{0.1 * float(values.std(correction=0)):.3g}") or 0.1)

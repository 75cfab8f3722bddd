"""Build the perturbations that a recipe lists as `{name: ..., arguments}`. `objectives.py` builds the objective."""

from typing import Any

from maxup.lab.recipes.schema import Spec
from maxup.lab.registry import PERTURBATIONS, build, takes
from maxup.perturb.base import Perturbation
from maxup.perturb.compose import Compose


def build_perturbation(specs: list[Spec], num_classes: int, **pixels: Any) -> Perturbation:
    """A perturbation from a recipe's list, composed where there are several.

    Those that take `num_classes`, and `mean` and `std` of the normalization, learn them where the recipe says nothing.
    """
    known, parts = {"num_classes": num_classes, **pixels}, []
    for spec in specs:
        if not isinstance(spec, dict) or "name" not in spec:
            raise ValueError(f"a perturbation is {{name: ..., arguments}}, but the recipe says {spec!r}")
        arguments = {k: v for k, v in spec.items() if k != "name"}
        if "key" in arguments:
            raise ValueError(f"perturbation {spec['name']!r}: key chooses a part of x, which is one tensor; drop it")
        if "mask_fill" in arguments:
            raise ValueError(
                f"perturbation {spec['name']!r}: mask_fill is for masks, and the labels are classes; drop it"
            )
        wanted = takes(PERTURBATIONS, "perturbation", spec["name"])
        arguments = {k: v for k, v in known.items() if k in wanted} | arguments
        parts.append(build(PERTURBATIONS, "perturbation", spec["name"], **arguments))
    return parts[0] if len(parts) == 1 else Compose(*parts)

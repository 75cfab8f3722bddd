"""Build the perturbations that a recipe lists as `{name: ..., arguments}`. `objectives.py` builds the objective."""

from typing import TYPE_CHECKING, Any

from maxup.errors import RecipeError
from maxup.lab.recipes.schema import Spec
from maxup.lab.registry import PERTURBATIONS, build, get_parameters

if TYPE_CHECKING:
    from maxup.perturb.base import Perturbation

FROM_DATA = ("num_classes", "mean", "std")  # arguments that default to those of the data
NOT_IN_RECIPES = {  # arguments that a recipe cannot set
    "key": "key selects an entry of x, but x is a single tensor",
    "mask_fill": "mask_fill is for segmentation masks, but the labels are classes",
}


def build_perturbation(specs: list[Spec], num_classes: int, **pixels: Any) -> "Perturbation":
    """Build a perturbation from a list in a recipe. Several are composed.

    Args:
        specs: The list of `{name: ..., arguments}`.
        num_classes: Number of classes, for perturbations that take it.
        **pixels: `mean` and `std` of the normalization, for perturbations that take them.
    """
    from maxup.perturb.compose import Compose

    defaults, parts = {"num_classes": num_classes, **pixels}, []
    for spec in specs:
        if not isinstance(spec, dict) or "name" not in spec:
            raise RecipeError(f"a perturbation must be {{name: ..., arguments}}, but the recipe has {spec!r:.60}")
        arguments = {k: v for k, v in spec.items() if k != "name"}
        for name, why in NOT_IN_RECIPES.items():
            if name in arguments:
                raise RecipeError(f"perturbation {spec['name']!r}: {why}; remove it")
        known = get_parameters(PERTURBATIONS, "perturbation", spec["name"])
        arguments = {k: v for k, v in defaults.items() if k in known} | arguments
        parts.append(build(PERTURBATIONS, "perturbation", spec["name"], **arguments))
    return parts[0] if len(parts) == 1 else Compose(*parts)

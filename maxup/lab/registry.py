"""The perturbations and models that recipes can name.

A recipe can only build what is listed here, so an untrusted recipe cannot run code. To add a perturbation or a model,
add a line: name, module and attribute. The module is imported when the name is used.
"""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from maxup.errors import RecipeError, error_message, format_value, unknown_name
from maxup.lab.limits import check_range

PERTURBATIONS = {
    "gaussian": "maxup.perturb.noise:Gaussian",
    "uniform_ball": "maxup.perturb.noise:UniformBall",
    "cutout": "maxup.perturb.cutout:Cutout",
    "cutmix": "maxup.perturb.cutmix:CutMix",
    "mixup": "maxup.perturb.mixup:MixUp",
    "crop_flip": "maxup.perturb.crop_flip:CropFlip",
    "affine": "maxup.perturb.affine:Affine",
    "rand_augment": "maxup.perturb.rand_augment:RandAugment",
    "trivial_augment": "maxup.perturb.trivial_augment:TrivialAugment",
    "auto_augment": "maxup.perturb.auto_augment:AutoAugment",
    "color_jitter": "maxup.perturb.color_jitter:ColorJitter",
    "lighting": "maxup.perturb.lighting:Lighting",
    "label_noise": "maxup.perturb.labels:LabelNoise",
    "feature_noise": "maxup.perturb.feature:FeatureNoise",
    "embedding_dropout": "maxup.perturb.embedding:EmbeddingDropout",
    "token_dropout": "maxup.perturb.token_dropout:TokenDropout",
    "manifold_mixup": "maxup.perturb.manifold_mixup:ManifoldMixup",
}
MODELS = {
    "mlp": "maxup.lab.models.mlp:mlp",
    "conv": "maxup.lab.models.conv:conv",
    "speednet": "maxup.lab.models.speednet:speednet",
    "resnet": "maxup.lab.models.resnet:resnet",  # depth 6n + 2, any width
    **{f"resnet{depth}": f"maxup.lab.models.resnet:resnet{depth}" for depth in (20, 32, 44, 56, 110)},
    **{f"preact_resnet{depth}": f"maxup.lab.models.preact_resnet:preact_resnet{depth}" for depth in (20, 56, 110)},
    **{name: f"maxup.lab.models.wide_resnet:{name}" for name in ("wrn16_4", "wrn40_2", "wrn28_10")},
}
LANGUAGE_MODELS = {"awd_lstm": "maxup.lab.models.awd_lstm:AWDLSTM"}


def get_parameters(registry: Mapping[str, str], kind: str, name: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a registered class or function."""
    return inspect.signature(_find(registry, kind, name)).parameters


def build(registry: Mapping[str, str], kind: str, name: str, /, **arguments: Any) -> Any:
    """Build a registered object, after checking that it takes the arguments. `kind` is for error messages."""
    make = _find(registry, kind, name)
    known = inspect.signature(make).parameters
    for argument in arguments:
        if argument not in known:
            raise RecipeError(unknown_name(argument, list(known), f"argument of {kind} {name!r}"))
    missing = [p for p, d in known.items() if d.default is inspect.Parameter.empty and p not in arguments]
    if missing:
        raise RecipeError(f"{kind} {name!r} needs {' and '.join(missing)}")
    try:
        for argument, value in arguments.items():
            check_range(argument, value, known[argument].annotation)
        return make(**arguments)
    except Exception as error:  # the arguments come from a recipe and can be anything
        given = ", ".join(f"{key}={format_value(value)}" for key, value in arguments.items())
        raise RecipeError(f"{kind} {name!r} cannot be built with {given}: {error_message(error)}") from error


def _find(registry: Mapping[str, str], kind: str, name: str) -> Any:
    if not isinstance(name, str) or name not in registry:
        raise RecipeError(unknown_name(str(name), registry, kind))
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)

"""MaxUp: train on the worst of m random copies of every example.

>>> import torch
>>> from maxup import CutMix, MaxUp
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
>>> x, y = torch.rand(16, 3, 8, 8), torch.randint(10, (16,))
>>> objective = MaxUp(CutMix(num_classes=10), m=4)
>>> x, y = objective.select(model, x, y)  # the worst of 4 copies of every example
>>> loss = torch.nn.functional.cross_entropy(model(x), y)  # the loop you already had
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from maxup import theory
    from maxup.batch import SharedDraw
    from maxup.errors import MaxUpWarning
    from maxup.lab.models.export import load
    from maxup.losses import cross_entropy, next_token_cross_entropy, token_cross_entropy
    from maxup.objectives.adversarial import Adversarial
    from maxup.objectives.average import Average
    from maxup.objectives.base import Objective
    from maxup.objectives.hard_examples import HardExamples
    from maxup.objectives.maxup import MaxUp
    from maxup.objectives.outcome import Outcome, Report
    from maxup.objectives.schedules import warmup
    from maxup.objectives.smoothadv import SmoothAdv
    from maxup.perturb.adapters import Transform, Views, ViewsDataset
    from maxup.perturb.affine import Affine
    from maxup.perturb.auto_augment import AutoAugment
    from maxup.perturb.base import Perturbation
    from maxup.perturb.color_jitter import ColorJitter
    from maxup.perturb.compose import Compose
    from maxup.perturb.crop_flip import CropFlip
    from maxup.perturb.cutmix import CutMix
    from maxup.perturb.cutout import Cutout
    from maxup.perturb.embedding import EmbeddingDropout
    from maxup.perturb.feature import FeatureNoise
    from maxup.perturb.labels import LabelNoise
    from maxup.perturb.lighting import Lighting
    from maxup.perturb.manifold_mixup import ManifoldMixup
    from maxup.perturb.mixup import MixUp
    from maxup.perturb.noise import Gaussian, UniformBall
    from maxup.perturb.rand_augment import RandAugment
    from maxup.perturb.trivial_augment import TrivialAugment
    from maxup.smoothing.smooth import Smooth

# Where each public name lives. It is imported when first used (PEP 562), so that `import maxup` does not import torch.
_HOME = {
    "MaxUp": "objectives.maxup",
    "Average": "objectives.average",
    "Adversarial": "objectives.adversarial",
    "HardExamples": "objectives.hard_examples",
    "SmoothAdv": "objectives.smoothadv",
    "Objective": "objectives.base",
    "MaxUpWarning": "errors",
    "Outcome": "objectives.outcome",
    "Report": "objectives.outcome",
    "cross_entropy": "losses",
    "token_cross_entropy": "losses",
    "next_token_cross_entropy": "losses",
    "warmup": "objectives.schedules",
    "load": "lab.models.export",
    "Smooth": "smoothing.smooth",
    "Perturbation": "perturb.base",
    "SharedDraw": "batch",
    "Gaussian": "perturb.noise",
    "UniformBall": "perturb.noise",
    "Cutout": "perturb.cutout",
    "CutMix": "perturb.cutmix",
    "MixUp": "perturb.mixup",
    "CropFlip": "perturb.crop_flip",
    "Affine": "perturb.affine",
    "RandAugment": "perturb.rand_augment",
    "TrivialAugment": "perturb.trivial_augment",
    "AutoAugment": "perturb.auto_augment",
    "ColorJitter": "perturb.color_jitter",
    "Lighting": "perturb.lighting",
    "Compose": "perturb.compose",
    "EmbeddingDropout": "perturb.embedding",
    "FeatureNoise": "perturb.feature",
    "ManifoldMixup": "perturb.manifold_mixup",
    "LabelNoise": "perturb.labels",
    "Transform": "perturb.adapters",
    "Views": "perturb.adapters",
    "ViewsDataset": "perturb.adapters",
}

__all__ = [*_HOME, "theory"]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module("maxup.theory")
    if name not in _HOME:
        raise AttributeError(f"module 'maxup' has no attribute {name!r}")
    value = getattr(import_module(f"maxup.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

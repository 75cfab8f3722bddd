"""Perturbations P(.|x), one distribution per file.

`draw(batch, generator)` returns random parameters for every example. `apply(batch, draw)` returns the perturbed batch.
To add a perturbation, subclass `Perturbation` from `base.py` and list it here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxup.perturb.adapters import Transform as Transform
    from maxup.perturb.adapters import Views as Views
    from maxup.perturb.adapters import ViewsDataset as ViewsDataset
    from maxup.perturb.affine import Affine as Affine
    from maxup.perturb.auto_augment import AutoAugment as AutoAugment
    from maxup.perturb.base import Perturbation as Perturbation
    from maxup.perturb.color_jitter import ColorJitter as ColorJitter
    from maxup.perturb.compose import Compose as Compose
    from maxup.perturb.crop_flip import CropFlip as CropFlip
    from maxup.perturb.cutmix import CutMix as CutMix
    from maxup.perturb.cutout import Cutout as Cutout
    from maxup.perturb.embedding import EmbeddingDropout as EmbeddingDropout
    from maxup.perturb.feature import FeatureNoise as FeatureNoise
    from maxup.perturb.labels import LabelNoise as LabelNoise
    from maxup.perturb.lighting import Lighting as Lighting
    from maxup.perturb.manifold_mixup import ManifoldMixup as ManifoldMixup
    from maxup.perturb.mixup import MixUp as MixUp
    from maxup.perturb.noise import Gaussian as Gaussian
    from maxup.perturb.noise import UniformBall as UniformBall
    from maxup.perturb.rand_augment import RandAugment as RandAugment
    from maxup.perturb.token_dropout import TokenDropout as TokenDropout
    from maxup.perturb.trivial_augment import TrivialAugment as TrivialAugment
else:
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "adapters": "Transform Views ViewsDataset",
            "affine": "Affine",
            "auto_augment": "AutoAugment",
            "base": "Perturbation",
            "color_jitter": "ColorJitter",
            "compose": "Compose",
            "crop_flip": "CropFlip",
            "cutmix": "CutMix",
            "cutout": "Cutout",
            "embedding": "EmbeddingDropout",
            "feature": "FeatureNoise",
            "labels": "LabelNoise",
            "lighting": "Lighting",
            "manifold_mixup": "ManifoldMixup",
            "mixup": "MixUp",
            "noise": "Gaussian UniformBall",
            "rand_augment": "RandAugment",
            "token_dropout": "TokenDropout",
            "trivial_augment": "TrivialAugment",
        },
    )

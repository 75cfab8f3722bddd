"""MaxUp: train on the worst of m random copies of every example.

>>> import torch
>>> from maxup import CutMix, MaxUp
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
>>> x, y = torch.rand(16, 3, 8, 8), torch.randint(10, (16,))
>>> objective = MaxUp(CutMix(num_classes=10), m=4)
>>> x, y = objective.select(model, x, y)  # the worst of 4 copies of every example
>>> loss = torch.nn.functional.cross_entropy(model(x), y)  # the rest of your training loop stays the same
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from maxup import diagnostics as diagnostics
    from maxup import theory as theory
    from maxup.batch import SharedDraw as SharedDraw
    from maxup.errors import MaxUpWarning as MaxUpWarning
    from maxup.lab.models.export import load as load
    from maxup.lab.train.api import train as train
    from maxup.losses import cross_entropy as cross_entropy
    from maxup.losses import next_token_cross_entropy as next_token_cross_entropy
    from maxup.losses import token_cross_entropy as token_cross_entropy
    from maxup.objectives import *
    from maxup.objectives.captured import captured as captured
    from maxup.perturb import *
    from maxup.smoothing import Smooth as Smooth
else:
    from maxup import objectives, perturb
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "batch": "SharedDraw",
            "diagnostics": "diagnostics",
            "errors": "MaxUpWarning",
            "lab.models.export": "load",
            "lab.train.api": "train",
            "losses": "cross_entropy next_token_cross_entropy token_cross_entropy",
            "objectives": " ".join(objectives.__all__),
            "objectives.captured": "captured",
            "perturb": " ".join(perturb.__all__),
            "smoothing": "Smooth",
            "theory": "theory",
        },
    )

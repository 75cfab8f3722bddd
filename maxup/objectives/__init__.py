"""Objectives, one equation per file. `objective(model, x, y)` returns a loss to backpropagate.

`maxup.py` is the method; the worst copy is chosen in `running_max.py`. To add an objective, subclass `Objective` from
`base.py` and list it here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxup.objectives.adversarial import Adversarial as Adversarial
    from maxup.objectives.average import Average as Average
    from maxup.objectives.base import Objective as Objective
    from maxup.objectives.hard_examples import HardExamples as HardExamples
    from maxup.objectives.maxup import MaxUp as MaxUp
    from maxup.objectives.outcome import Outcome as Outcome
    from maxup.objectives.outcome import Report as Report
    from maxup.objectives.schedules import warmup as warmup
    from maxup.objectives.smoothadv import SmoothAdv as SmoothAdv
else:
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "adversarial": "Adversarial",
            "average": "Average",
            "base": "Objective",
            "hard_examples": "HardExamples",
            "maxup": "MaxUp",
            "outcome": "Outcome Report",
            "schedules": "warmup",
            "smoothadv": "SmoothAdv",
        },
    )

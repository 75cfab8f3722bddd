"""MaxUp in trainers: a Lightning callback, a Hugging Face `Trainer` and a timm task.

Each name is imported on first use, with the package it needs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxup.integrations.lightning import MaxUpCallback as MaxUpCallback
    from maxup.integrations.timm import MaxUpTask as MaxUpTask
    from maxup.integrations.transformers import MaxUpTrainer as MaxUpTrainer
else:
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(
        __name__, {"lightning": "MaxUpCallback", "timm": "MaxUpTask", "transformers": "MaxUpTrainer"}
    )

"""Lightning: `Trainer(callbacks=[MaxUpCallback(objective)])` trains on the worst copies."""

import sys
from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from typing import Any

from maxup.integrations.batches import split
from maxup.integrations.common import check_generator, check_objective, require
from maxup.objectives.base import call_model
from maxup.objectives.maxup import MaxUp

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
UNSUPPORTED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}
pl: Any = require("MaxUpCallback", "lightning", *PACKAGES)


class MaxUpCallback(pl.Callback):
    """Pass the worst of m copies of every batch to `training_step`, which stays as it is.

    The copies are scored by calling the `LightningModule`, under the precision of the training step and without
    communication between processes. The objective's state is saved in checkpoints and restored from them. In-model
    perturbations stay active until `training_step` returns.

    Args:
        objective: The `MaxUp` objective.
        model: What to score copies with, if not the module itself: the name of a submodule, such as "net", or a
            function of the module.
        x: Key or position of the input in a batch. Default: position 0, or everything except the target in a dict.
        y: Key or position of the target. Default: position 1, or "labels" in a dict.

    Example:
        >>> from maxup import Gaussian
        >>> trainer = pl.Trainer(callbacks=[MaxUpCallback(MaxUp(Gaussian(0.1), m=4))], logger=False)
    """

    def __init__(
        self, objective: MaxUp, *, model: str | Callable[..., Any] | None = None, x: Hashable = None, y: Hashable = None
    ) -> None:
        if not (callable(model) or isinstance(model, str | None)):
            raise TypeError(f"model={model!r:.60}: pass the name of a submodule of your module, or a function of it")
        self.objective, self.model, self.x, self.y = check_objective(objective, "MaxUpCallback"), model, x, y
        self._before: dict[str, Any] | None = None  # the module's attribute `training_step`, set by torch.compile

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap `training_step`."""
        self._check(trainer, pl_module)
        pl.utilities.rank_zero_info(f"MaxUpCallback: training with {self.objective}")
        step = pl_module.training_step

        @wraps(step)  # Lightning reads the arguments of `training_step`
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            model = self.model(pl_module) if callable(self.model) else pl_module.get_submodule(self.model or "")
            x, y, join = split(batch, self.x, self.y)
            with self.objective.selected(model, x, y) as winners:
                return step(join(*winners), *args, **kwargs)

        self._before = {key: value for key, value in vars(pl_module).items() if key == "training_step"}
        pl_module.training_step = training_step

    def on_fit_end(self, trainer: Any, pl_module: Any, exception: BaseException | None = None) -> None:
        """Restore `training_step`."""
        if self._before is not None:
            del pl_module.training_step
            vars(pl_module).update(self._before)
            self._before = None

    on_exception = on_fit_end

    def state_dict(self) -> dict[str, Any]:
        return self.objective.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.objective.load_state_dict(state_dict)

    def _check(self, trainer: Any, pl_module: Any) -> None:
        """Raise if the objective cannot select what this module trains on."""
        if strategies := UNSUPPORTED & {kind.__name__ for kind in type(trainer.strategy).__mro__}:
            raise ValueError(f"MaxUpCallback does not support {strategies.pop()}; use DDPStrategy")
        check_generator(self.objective, "MaxUpCallback", trainer.world_size)
        name = type(pl_module).__name__
        if "dataloader_iter" in signature(pl_module.training_step).parameters:
            raise TypeError(f"{name}.training_step takes dataloader_iter, but MaxUpCallback needs training_step(batch)")
        undefined = [sys.modules[package].LightningModule.forward for package in PACKAGES if package in sys.modules]
        if self.model is None and type(pl_module).forward in undefined and self.objective.forward is call_model:
            raise TypeError(f"{name} has no forward to score copies with; pass MaxUpCallback(..., model='net')")

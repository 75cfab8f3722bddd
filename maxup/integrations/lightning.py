"""Lightning: `Trainer(callbacks=[MaxUpCallback(objective)])` trains on the worst copies."""

import sys
from collections.abc import Callable, Hashable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from typing import Any

from maxup.integrations.batches import join, split
from maxup.integrations.common import check_generator, check_objective, prepare_torchvision
from maxup.objectives.base import call_model
from maxup.objectives.maxup import MaxUp

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
UNSUPPORTED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


def _import_lightning() -> Any:
    """Import `pytorch_lightning` or `lightning.pytorch`, whichever is already imported, or otherwise installed."""
    prepare_torchvision()
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        if find_spec(name.partition(".")[0]) is not None:
            return import_module(name)
    raise ImportError("MaxUpCallback needs Lightning, which is not installed: pip install 'maxup[lightning]'")


pl: Any = _import_lightning()


class MaxUpCallback(pl.Callback):
    """Pass the worst of m copies of every batch to `training_step`, which stays as it is.

    The copies are scored by calling the `LightningModule`, under the precision of the training step and without
    communication between processes. The objective's state is saved in checkpoints and restored from them. In-model
    perturbations stay active until `training_step` returns.

    Args:
        objective: The `MaxUp` objective.
        model: What to score copies with, if not the module itself: the name of an attribute, such as "net", or a
            function of the module.
        x: Key or position of the input in a batch. Default: position 0, or everything except the target in a dict.
        y: Key or position of the target. Default: position 1, or "labels" in a dict.

    Example:
        >>> from maxup import Gaussian
        >>> trainer = pl.Trainer(callbacks=[MaxUpCallback(MaxUp(Gaussian(0.1), m=4))], logger=False)
    """

    def __init__(
        self,
        objective: MaxUp,
        *,
        model: str | Callable[[Any], Any] | None = None,
        x: Hashable | None = None,
        y: Hashable | None = None,
    ) -> None:
        if not (model is None or isinstance(model, str) or callable(model)):
            raise TypeError(f"model={model!r:.60}: pass the name of an attribute of your module, or a function of it")
        self.objective, self.model, self.x, self.y = check_objective(objective, "MaxUpCallback"), model, x, y
        self._before: dict[str, Any] | None = None  # the module's attribute `training_step`, set by torch.compile

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap `training_step`."""
        self._check(trainer, pl_module)
        step = pl_module.training_step

        @wraps(step)  # Lightning reads the arguments of `training_step`
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            x, y = split(batch, self.x, self.y)
            with self.objective.selected(self._get_model(pl_module), x, y) as winners:
                return step(join(batch, *winners, self.x, self.y), *args, **kwargs)

        self._before = {key: value for key, value in vars(pl_module).items() if key == "training_step"}
        pl_module.training_step = training_step

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore `training_step`."""
        if self._before is not None:
            del pl_module.training_step
            vars(pl_module).update(self._before)
            self._before = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore `training_step`."""
        self.on_fit_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the objective's state, for a checkpoint."""
        return self.objective.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the objective's state from a checkpoint."""
        self.objective.load_state_dict(state_dict)

    def _get_model(self, pl_module: Any) -> Any:
        """Return what to score copies with."""
        if callable(self.model):
            return self.model(pl_module)
        try:
            return pl_module if self.model is None else attrgetter(self.model)(pl_module)
        except AttributeError as error:
            raise AttributeError(
                f"MaxUpCallback(..., model={self.model!r}): {error}; name an attribute of the module, such as 'net'"
            ) from None

    def _check(self, trainer: Any, pl_module: Any) -> None:
        strategy = next((c.__name__ for c in type(trainer.strategy).__mro__ if c.__name__ in UNSUPPORTED), None)
        if strategy is not None:
            raise ValueError(f"MaxUpCallback does not support {strategy}; use DDPStrategy")
        check_generator(self.objective, "MaxUpCallback", trainer.world_size)
        name = type(pl_module).__name__
        if "dataloader_iter" in signature(pl_module.training_step).parameters:
            raise TypeError(f"{name}.training_step takes dataloader_iter, but MaxUpCallback needs training_step(batch)")
        packages = [sys.modules[package] for package in PACKAGES if package in sys.modules]  # the user's and `pl`
        no_forward = type(pl_module).forward in [package.LightningModule.forward for package in packages]
        if self.model is None and no_forward and self.objective.forward is call_model:
            raise TypeError(f"{name} has no forward to score copies with; pass MaxUpCallback(..., model='attribute')")

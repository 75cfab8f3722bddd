"""timm: `MaxUpTask(model, criterion, maxup=objective)` is a `ClassificationTask` that trains on the worst copies."""

import logging
from typing import Any

from torch import Tensor, distributed, nn

from maxup.integrations.common import check_generator, check_objective, defaults, require
from maxup.integrations.losses import criterion_per_example
from maxup.losses import cross_entropy
from maxup.objectives.maxup import MaxUp
from maxup.rng import objective_seed

require("MaxUpTask", "timm")

from timm.loss import LabelSmoothingCrossEntropy  # noqa: E402
from timm.task import ClassificationTask  # noqa: E402

_logger = logging.getLogger(__name__)


class MaxUpTask(ClassificationTask):
    """timm's classification task on the worst of m copies of every example.

    Copies are scored by the criterion per example. If the perturbation mixes labels, as CutMix does, a criterion for
    class ids is replaced by the same loss for probabilities. The task's checkpoint state holds the objective's state.

    Args:
        *args: As for `ClassificationTask`: the model, and the criterion, one of timm's or torch's losses. Create the
            objective with `loss_fn=` for other losses.
        maxup: The `MaxUp` objective.
        **kwargs: As for `ClassificationTask`.

    Example:
        >>> import torch
        >>> from maxup import Cutout
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
        >>> task = MaxUpTask(model, LabelSmoothingCrossEntropy(0.1), maxup=MaxUp(Cutout(4), m=4), verbose=False)
        >>> task(torch.rand(2, 3, 8, 8), torch.tensor([3, 7]))["loss"].backward()
    """

    def __init__(self, *args: Any, maxup: MaxUp, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.maxup = check_objective(maxup, "MaxUpTask")
        check_generator(maxup, "MaxUpTask", distributed.get_world_size() if distributed.is_initialized() else 1)
        self._loss_fn = criterion_per_example(self.criterion) if maxup.loss_fn is cross_entropy else maxup.loss_fn
        if self.verbose:
            _logger.info(f"MaxUpTask: training with {maxup}")

    def prepare_distributed(self, *args: Any, **kwargs: Any) -> "MaxUpTask":
        """Wrap the model in DDP. All ranks get the seed of rank 0, whose state is saved.

        timm's training script seeds every rank differently. Copies still differ between ranks.
        """
        super().prepare_distributed(*args, **kwargs)
        state = self.maxup.state_dict()
        if "seed" in state:  # not if the objective has generator=, in a group of one process
            states = [{**state, "seed": objective_seed(self.maxup) if state["seed"] is None else state["seed"]}]
            distributed.broadcast_object_list(states)
            self.maxup.load_state_dict(states[0])
        return self

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the loss of the worst copies and their logits."""
        if not self.training:
            return super().forward(input, target)
        model = self.trainable_module
        with defaults(self.maxup, loss_fn=self._loss_fn), self.maxup.selected(model, input, target) as (x, y):
            if y.is_floating_point() and isinstance(self.criterion, LabelSmoothingCrossEntropy):
                output = model(x)  # this criterion takes class ids only
                loss = cross_entropy(output, y, label_smoothing=self.criterion.smoothing).mean()
                return {"loss": loss, "output": output}
            return super().forward(x, y)

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """Return the objective's state, for a checkpoint."""
        return {} if ema else {"maxup": self.maxup.state_dict()}

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        """Restore the objective's state from a checkpoint."""
        if state and not ema:
            self.maxup.load_state_dict(state["maxup"])

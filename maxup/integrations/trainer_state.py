"""The state of an objective in the checkpoints of the Hugging Face `Trainer`."""

from typing import Any

import torch
from torch import Tensor

from maxup.objectives.maxup import MaxUp


def state_callback(objective: MaxUp) -> Any:
    """Return a callback that saves the objective's state with the Trainer's, and restores it."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class MaxUpState(TrainerCallback, ExportableState):
        # Trainer may create it again without arguments, so the class holds the objective.
        def state(self) -> dict[str, Any]:
            values = objective.state_dict().items()
            saved = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values}  # for JSON
            return {"args": {}, "attributes": {"maxup": saved}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # The current state if not resumed, or resumed from a checkpoint without MaxUp. Trainer expects an entry.
            saved = state.stateful_callbacks.setdefault("MaxUpState", self.state())["attributes"]["maxup"].items()
            objective.load_state_dict({k: torch.tensor(v).byte() if isinstance(v, list) else v for k, v in saved})

    return MaxUpState()

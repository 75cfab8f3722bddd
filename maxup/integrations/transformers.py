"""Hugging Face: `MaxUpTrainer(..., maxup=objective)` is a `Trainer` that trains on the worst copies."""

from functools import partial
from typing import Any

from torch import Tensor

from maxup.integrations.common import check_generator, check_objective, defaults, require
from maxup.integrations.losses import get_logits, model_loss_per_example, soft_cross_entropy
from maxup.integrations.trainer_state import state_callback
from maxup.losses import cross_entropy
from maxup.objectives.base import LossFn
from maxup.objectives.maxup import MaxUp

require("MaxUpTrainer", "transformers")

from transformers import Trainer, logging  # noqa: E402


class MaxUpTrainer(Trainer):
    """A `Trainer` that trains on the worst of m copies of every example. The model computes the loss, as always.

    Copies are scored by the model's loss per example: cross-entropy, label smoothing, regression, multi-label, and the
    losses of language models. Labels that the perturbation mixes, as CutMix does, are trained with the cross-entropy.
    Checkpoints hold the objective's state. Evaluation is unchanged.

    Args:
        *args: As for `Trainer`.
        maxup: The `MaxUp` objective. Create it with `loss_fn=` if you pass a `compute_loss_func`.
        **kwargs: As for `Trainer`.

    Example:
        >>> from maxup import Gaussian
        >>> objective = MaxUp(Gaussian(0.1, key="pixel_values"), m=4)
        >>> trainer = MaxUpTrainer(model, args, train_dataset=data, maxup=objective)  # doctest: +SKIP
    """

    compute_loss_func: Any  # of Trainer

    def __init__(self, *args: Any, maxup: MaxUp, **kwargs: Any) -> None:
        self.maxup = check_objective(maxup, "MaxUpTrainer")
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError("MaxUpTrainer does not support nn.DataParallel; launch one process per GPU with torchrun")
        check_generator(maxup, "MaxUpTrainer", self.args.world_size)
        if self.is_deepspeed_enabled or (self.is_fsdp_enabled and not getattr(self.accelerator, "is_fsdp2", False)):
            raise ValueError("MaxUpTrainer does not support DeepSpeed and FSDP1; use DDP or FSDP2")
        if self.compute_loss_func is not None and maxup.loss_fn is cross_entropy:
            raise ValueError("compute_loss_func gives one loss per batch; also pass one per example, MaxUp(loss_fn=)")
        self._maxup_loss_fn: LossFn | None = None if maxup.loss_fn is cross_entropy else maxup.loss_fn
        self.add_callback(state_callback(maxup))
        # as the Trainer's own lines: on rank 0, with log_level="info"
        logging.get_logger("transformers.trainer").info(f"MaxUpTrainer: training with {maxup}")

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the worst copies in training, and that of the batch in evaluation."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.get("labels")
        if not isinstance(labels, Tensor):
            raise ValueError(
                f"MaxUpTrainer needs a tensor of labels, but the batch has the keys {list(inputs)}; add 'labels'"
            )
        if self._maxup_loss_fn is None:
            self._maxup_loss_fn = model_loss_per_example(self.model, labels, self.args.label_smoothing_factor)
        x = {key: value for key, value in inputs.items() if key != "labels"}
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels") and "decoder_input_ids" not in x:
            # as the model does itself, but it is scored without labels
            x["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        custom = self.compute_loss_func
        scoring = defaults(self.maxup, loss_fn=self._maxup_loss_fn, forward=call_for_logits)
        with scoring, self.maxup.selected(model, x, labels) as (x, y):
            if custom is None and y.is_floating_point() and not labels.is_floating_point():
                # mixed labels, which would be multi-label targets for the model
                self.compute_loss_func = partial(soft_cross_entropy, label_smoothing=self.args.label_smoothing_factor)
                if getattr(self, "loss_is_scaled_for_ga", None) is False:  # since transformers 5.19
                    num_items_in_batch = None  # the Trainer wants a mean
            try:
                return super().compute_loss(model, {**x, "labels": y}, return_outputs, num_items_in_batch)
            finally:
                self.compute_loss_func = custom


def call_for_logits(model: Any, x: dict[str, Any]) -> Tensor:
    """Call a Hugging Face model: the `forward` of an objective."""
    return get_logits(model(**x))

"""Perturbations inside the model: attached once to its layers, switched on by putting a draw into their slots."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxup.checks import check_model
from maxup.perturb.base import Perturbation
from maxup.perturb.draws import Batch, Draw


class Slot(nn.Module):
    """Rewrites a layer's output as the draw in the slot says; does nothing while the slot is empty or in evaluation.

    It holds no parameter and no buffer, so the model's state_dict is what it was. Activation checkpointing runs the
    layer again in the backward pass, when the step is over and the slot is empty: for that, the last draw is kept.
    """

    def __init__(self, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> None:
        super().__init__()
        self.rewrite = rewrite
        self.draw: Draw | None = None
        self.kept: Draw | None = None  # of the last step
        self.pending = False  # whether no backward pass has used `kept` yet
        self.ambiguous = False  # whether a step before that was not backpropagated either

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        draw = self.draw
        recomputing = (
            not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
        )  # in a backward pass
        if draw is None and self.training and recomputing:
            draw = self._again()
        return output if draw is None or not self.training else self.rewrite(inputs, output, draw)

    def clear(self) -> None:
        """Empty the slot, and keep the draw for a backward pass that runs the layer again."""
        if self.draw is not None:
            self.ambiguous = self.pending
            self.draw, self.kept, self.pending = None, self.draw, True

    def _again(self) -> Draw | None:
        """The draw of the pass that activation checkpointing repeats."""
        if self.ambiguous:
            raise RuntimeError(
                "activation checkpointing runs a perturbed layer again, but two steps were taken since the last "
                "backward pass, so it is unknown which draw belongs to it; call backward after every step"
            )
        self.pending = False
        return self.kept


class Attached(Perturbation):
    """Base of the in-model perturbations: `apply` leaves the batch as it is and puts the draw where the model finds it.

    Attach before torch.compile and before wrapping for several processes: a compiled model does not see a hook added
    later. Use with `loss = maxup(model, x, y)` or `with maxup.selected(model, x, y) as (x, y):`.
    """

    slots: tuple[Slot, ...] = ()

    def attach(self, model: nn.Module) -> nn.Module:
        """Attach to the model's layers, setting `slots`, and return the model."""
        raise NotImplementedError(f"{type(self).__name__} must define attach(model)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        if not all(slot.training for slot in self._attached()):
            raise RuntimeError(
                f"{type(self).__name__} is off while the model is in evaluation mode; call model.train() first"
            )
        for slot in self._attached():
            slot.draw = draw
        return batch

    def clear(self) -> None:
        """Empty the slots: the model is itself again."""
        for slot in self.slots:
            slot.clear()

    def _attached(self) -> tuple[Slot, ...]:
        if not self.slots:
            raise RuntimeError(f"{type(self).__name__} is attached to no model; call .attach(model) first")
        return self.slots


def attach_to(layer: nn.Module, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> Slot:
    """Give a layer a slot and the hook that runs it. A layer has one slot: a second takes the place of the first."""
    if isinstance(layer, nn.Sequential | nn.ModuleList):
        raise ValueError(
            f"a {type(layer).__name__} would run the slot as one of its parts; attach to a layer inside it"
        )
    slot = Slot(rewrite).train(layer.training)
    if not hasattr(layer, "maxup_slot"):
        layer.register_forward_hook(_run_slot, with_kwargs=True)
    layer.maxup_slot = slot
    return slot


def find_layer(model: nn.Module, name: str, who: str) -> nn.Module:
    """The submodule of that name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = [n for n, _ in model.named_modules() if n]
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise ValueError(f"{who}: the model has no layer {name!r}; it has {shown}") from None


def attached(perturbation: Any) -> list[Attached]:
    """The in-model perturbations within a perturbation, itself or the parts of a composition."""
    if isinstance(perturbation, Attached):
        return [perturbation]
    return [part for inner in getattr(perturbation, "perturbations", ()) for part in attached(inner)]


def check_attached(perturbation: Any, model: Any) -> None:
    """Refuse a perturbation whose slots are not in this model: it would act nowhere."""
    parts = attached(perturbation)
    if not parts:
        return
    check_model(model)
    modules = set(model.modules())
    for part in parts:
        if not modules.issuperset(part.slots):
            raise ValueError(
                f"this {type(part).__name__} is attached to another model (a copy, perhaps), or another took its "
                "place; call .attach(model) on the model you train"
            )


def clear(perturbation: Any) -> None:
    """Empty the slots of the in-model perturbations within a perturbation."""
    for part in attached(perturbation):
        part.clear()


def _run_slot(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    # The hook finds the slot through the layer, so a deep copy of the model (an EMA, say) uses the slot of its own.
    slot = layer.maxup_slot
    assert isinstance(slot, Slot)
    return slot(next(iter((*args, *kwargs.values()))), output)

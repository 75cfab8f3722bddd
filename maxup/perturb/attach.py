"""Perturbations inside the model: attached once to its layers, switched on by putting a draw into their slots."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from maxup.perturb.base import Perturbation
from maxup.perturb.draws import Batch, Draw


class Slot(nn.Module):
    """Rewrites a layer's output as the draw in the slot says; does nothing while the slot is empty or in evaluation.

    It holds no parameter and no buffer, so the model's state_dict is what it was.
    """

    def __init__(self, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> None:
        super().__init__()
        self.rewrite = rewrite
        self.draw: Draw | None = None

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        return output if self.draw is None or not self.training else self.rewrite(inputs, output, self.draw)


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
            slot.draw = None

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


def check_attached(perturbation: Any, model: nn.Module) -> None:
    """Refuse a perturbation whose slots are not in this model: it would act nowhere."""
    modules = set(model.modules()) if attached(perturbation) else set()
    for part in attached(perturbation):
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

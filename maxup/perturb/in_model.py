"""Perturbations inside the model: attached once to its layers, switched on by putting a draw into their slots."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import Batch, Draw
from maxup.perturb.base import Perturbation
from maxup.validate import check_model

DRAWS, PASSES = 4, 256  # of a layer, remembered for activation checkpointing


class PerturbHook(nn.Module):
    """Rewrites a layer's output as the draw in the slot says; does nothing while the slot is empty or in evaluation.

    It holds no parameter and no buffer, so the model's state_dict is what it was. Activation checkpointing runs the
    layer again in the backward pass, when the step is over and the slot is empty. So the slot remembers the draws of
    the latest passes, and finds the pass that is repeated by a sample of the layer's output.
    """

    def __init__(self, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> None:
        super().__init__()
        self.rewrite = rewrite
        self.draw: Draw | None = None
        self.scoring = False  # whether the passes are never backpropagated
        self.passes: list[tuple[Tensor, Draw | None]] = []  # not backpropagated yet
        self.repeated: list[tuple[Tensor, Draw | None]] = []  # backpropagated, should that happen again

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        draw = self.draw
        if self.training and not self.scoring and isinstance(output, Tensor):
            if torch._C._current_graph_task_id() != -1:  # in a backward pass
                draw = self._repeat(output)
            elif draw is not None or torch.is_grad_enabled() or _in_reentrant_checkpoint():
                self.passes = _latest([*self.passes, (_sample(output), draw)])
        return output if draw is None or not self.training else self.rewrite(inputs, output, draw)

    def _repeat(self, output: Tensor) -> Draw | None:
        """The draw of the pass that activation checkpointing repeats."""
        sample = _sample(output)
        found = [entry for entry in self.passes if _alike(entry[0], sample)]
        found = found or [entry for entry in self.repeated if _alike(entry[0], sample)]
        if len({id(draw) for _, draw in found}) != 1:
            raise RuntimeError(
                f"activation checkpointing runs a perturbed layer again, and {len(found) or 'none'} of its last passes "
                "may be the one that is repeated; call backward after every step, and do not run the same batch with "
                "and without the perturbation in between"
            )
        self.passes = [entry for entry in self.passes if entry is not found[-1]]
        self.repeated = _latest([*self.repeated, found[-1]])
        return found[-1][1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "draw": None, "passes": [], "repeated": []}  # a saved model holds no draws


def _latest(passes: list[tuple[Tensor, Draw | None]]) -> list[tuple[Tensor, Draw | None]]:
    """The passes of the latest few draws."""
    draws = list(dict.fromkeys(id(draw) for _, draw in reversed(passes)))[:DRAWS]
    return [entry for entry in passes[-PASSES:] if id(entry[1]) in draws]


def _sample(output: Tensor) -> Tensor:
    """Some values of a layer's output, by which a pass is known; spread over all its dimensions."""
    values = output.detach().flatten()
    places = torch.arange(min(len(values), 1024), device=values.device) * 2654435761 % max(len(values), 1)
    return values[places].float()


def _in_reentrant_checkpoint() -> bool:
    """Whether a pass without gradients is one that torch.utils.checkpoint will repeat with them."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint" and frame.f_code.co_name == "forward":
            return True
    return False


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-4, equal_nan=True)


class InModelPerturbation(Perturbation):
    """Base of the in-model perturbations: `apply` leaves the batch as it is and puts the draw where the model finds it.

    Attach before torch.compile and before wrapping for several processes: a compiled model does not see a hook added
    later. Use with `loss = objective(model, x, y)` or `with objective.selected(model, x, y) as (x, y):`.
    """

    hooks: tuple[PerturbHook, ...] = ()

    def attach(self, model: nn.Module) -> nn.Module:
        """Attach to the model's layers, setting `hooks`, and return the model."""
        raise NotImplementedError(f"{type(self).__name__} must define attach(model)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        if not all(hook.training for hook in self._require_hooks()):
            raise RuntimeError(
                f"{type(self).__name__} is off while the model is in evaluation mode; call model.train() first"
            )
        for hook in self._require_hooks():
            hook.draw = draw
        return batch

    def clear(self) -> None:
        """Empty the slots: the model is itself again."""
        for hook in self.hooks:
            hook.draw = None

    def _require_hooks(self) -> tuple[PerturbHook, ...]:
        if not self.hooks:
            raise RuntimeError(f"{type(self).__name__} is attached to no model; call .attach(model) first")
        return self.hooks


def attach_to(layer: nn.Module, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> PerturbHook:
    """Give a layer a slot and the hook that runs it. A layer has one slot: a second takes the place of the first."""
    if isinstance(layer, nn.Sequential | nn.ModuleList):
        raise ValueError(
            f"a {type(layer).__name__} would run the slot as one of its parts; attach to a layer inside it"
        )
    hook = PerturbHook(rewrite).train(layer.training)
    if not hasattr(layer, "maxup_hook"):
        layer.register_forward_hook(_eager_hook(), with_kwargs=True)
    layer.maxup_hook = hook
    return hook


def find_layer(model: nn.Module, name: str, who: str) -> nn.Module:
    """The submodule of that name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = [n for n, _ in model.named_modules() if n]
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise ValueError(f"{who}: the model has no layer {name!r}; it has {shown}") from None


def in_model_parts(perturbation: Any) -> list[InModelPerturbation]:
    """The in-model perturbations within a perturbation, itself or the parts of a composition."""
    if isinstance(perturbation, InModelPerturbation):
        return [perturbation]
    return [part for inner in getattr(perturbation, "perturbations", ()) for part in in_model_parts(inner)]


def check_attached(perturbation: Any, model: Any) -> None:
    """Refuse a perturbation whose slots are not in this model: it would act nowhere."""
    parts = in_model_parts(perturbation)
    if not parts:
        return
    check_model(model)
    modules = set(model.modules())
    for part in parts:
        if not modules.issuperset(part.hooks):
            raise ValueError(
                f"this {type(part).__name__} is attached to another model (a copy, perhaps), or another took its "
                "place; call .attach(model) on the model you train"
            )


def clear(perturbation: Any) -> None:
    """Empty the slots of the in-model perturbations within a perturbation."""
    for part in in_model_parts(perturbation):
        part.clear()


def _eager_hook() -> Callable[..., Tensor]:
    """`_run_hook`, never compiled: a compiled pass could not be told from one that checkpointing repeats.

    It replaces the function itself, by whose name a model is pickled; only here, since it imports the compiler.
    """
    global _run_hook
    if not hasattr(_run_hook, "_torchdynamo_disable"):
        _run_hook = torch.compiler.disable(_run_hook)
    return _run_hook


def _run_hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    # The hook finds the slot through the layer, so a deep copy of the model (an EMA, say) uses the slot of its own.
    hook = layer.maxup_hook
    assert isinstance(hook, PerturbHook)
    return hook(next(iter((*args, *kwargs.values()))), output)

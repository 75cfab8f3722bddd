"""In-model perturbations: attached to layers once, active while their hooks hold a draw."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxup.batch import Batch, Draw
from maxup.errors import a_type
from maxup.perturb.base import Perturbation
from maxup.validate import check_model

DRAWS, PASSES = 4, 256  # number of draws and of passes that a hook remembers, for activation checkpointing


class PerturbHook(nn.Module):
    """Perturb a layer's output with the current draw. Does nothing without a draw or in evaluation mode.

    The hook has no parameters and no buffers, so the model's state_dict does not change. Activation checkpointing runs
    the layer again in the backward pass, when the draw has already been cleared. The hook therefore remembers the draws
    of the latest passes, and recognizes the repeated pass by a sample of the layer's output.

    Args:
        rewrite: Computes the new output from the layer's first input, its output and the draw.
    """

    def __init__(self, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> None:
        super().__init__()
        self.rewrite = rewrite
        self.draw: Draw | None = None
        self.scoring = False  # whether passes are only scored, never backpropagated
        self.passes: list[tuple[Tensor, Draw | None]] = []  # before their backward pass
        self.repeated: list[tuple[Tensor, Draw | None]] = []  # after it, in case the graph is retained

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        draw = self.draw
        if self.training and not self.scoring and isinstance(output, Tensor):
            if torch._C._current_graph_task_id() != -1:  # inside a backward pass
                draw = self._repeat(output)
            elif draw is not None or torch.is_grad_enabled() or _in_reentrant_checkpoint():
                self.passes = _latest([*self.passes, (_sample(output), draw)])
        return output if draw is None or not self.training else self.rewrite(inputs, output, draw)

    def _repeat(self, output: Tensor) -> Draw | None:
        """Return the draw of the pass that activation checkpointing repeats."""
        sample = _sample(output)
        matches = [entry for entry in self.passes if _alike(entry[0], sample)]
        matches = matches or [entry for entry in self.repeated if _alike(entry[0], sample)]
        if len({id(draw) for _, draw in matches}) != 1:
            raise RuntimeError(
                "activation checkpointing repeats a pass through a perturbed layer, which matches "
                f"{len(matches)} recorded passes (expected 1); call backward after every step, and do not "
                "run the same batch with and without the perturbation in between"
            )
        self.passes = [entry for entry in self.passes if entry is not matches[-1]]
        self.repeated = _latest([*self.repeated, matches[-1]])
        return matches[-1][1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "draw": None, "passes": [], "repeated": []}  # a saved model holds no draws


def _latest(passes: list[tuple[Tensor, Draw | None]]) -> list[tuple[Tensor, Draw | None]]:
    """Return the passes of the latest few draws."""
    draws = list(dict.fromkeys(id(draw) for _, draw in reversed(passes)))[:DRAWS]
    return [entry for entry in passes[-PASSES:] if id(entry[1]) in draws]


def _sample(output: Tensor) -> Tensor:
    """Return a sample of a layer's output that identifies the pass, spread over all dimensions."""
    values = output.detach().flatten()
    indices = torch.arange(min(len(values), 1024), device=values.device) * 2654435761 % max(len(values), 1)
    return values[indices].float()


def _in_reentrant_checkpoint() -> bool:
    """Whether torch.utils.checkpoint runs this pass without gradients and will repeat it with gradients."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        checkpointed = frame.f_globals.get("__name__") == "torch.utils.checkpoint" and frame.f_code.co_name == "forward"
        if checkpointed and any(frame.f_locals["ctx"].needs_input_grad):  # False if the whole model has no gradients
            return True
    return False


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-4, equal_nan=True)


class InModelPerturbation(Perturbation):
    """Base class of in-model perturbations: `apply` passes the draw to the hooks and returns the batch unchanged.

    Attach before `torch.compile` and before wrapping in DDP: a compiled model ignores hooks that are added later. Use
    with `loss = objective(model, x, y)` or `with objective.selected(model, x, y) as (x, y):`.
    """

    hooks: tuple[PerturbHook, ...] = ()

    def attach(self, model: nn.Module) -> nn.Module:
        """Attach to the model's layers, set `hooks`, and return the model."""
        raise NotImplementedError(f"{type(self).__name__} must define attach(model)")

    def apply(self, batch: Batch, draw: Draw) -> Batch:
        if not all(hook.training for hook in self._require_hooks()):
            raise RuntimeError(f"{type(self).__name__} has no effect in evaluation mode; call model.train() first")
        for hook in self._require_hooks():
            hook.draw = draw
        return batch

    def clear(self) -> None:
        """Clear the draw, so that the model is no longer perturbed."""
        for hook in self.hooks:
            hook.draw = None

    def _require_hooks(self) -> tuple[PerturbHook, ...]:
        if not self.hooks:
            raise RuntimeError(f"{type(self).__name__} is not attached to a model; call .attach(model) first")
        return self.hooks


def attach_to(layer: nn.Module, rewrite: Callable[[Tensor, Tensor, Draw], Tensor]) -> PerturbHook:
    """Attach a `PerturbHook` to a layer and return it. A layer has one hook: a second one replaces the first."""
    if isinstance(layer, nn.Sequential | nn.ModuleList):
        raise ValueError(f"{a_type(layer)} would call the hook as one of its layers; attach to a layer inside it")
    hook = PerturbHook(rewrite).train(layer.training)
    if not hasattr(layer, "maxup_hook"):
        layer.register_forward_hook(_eager_hook(), with_kwargs=True)
    layer.maxup_hook = hook
    return hook


def find_layer(model: nn.Module, name: str, who: str) -> nn.Module:
    """Return the submodule with this name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = [n for n, _ in model.named_modules() if n]
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise ValueError(f"{who}: the model has no layer {name!r}; its layers are {shown}") from None


def in_model_parts(perturbation: Any) -> list[InModelPerturbation]:
    """Return the in-model perturbations in a perturbation: itself, or parts of a composition."""
    if isinstance(perturbation, InModelPerturbation):
        return [perturbation]
    return [part for inner in getattr(perturbation, "perturbations", ()) for part in in_model_parts(inner)]


def check_attached(perturbation: Any, model: Any) -> None:
    """Raise if a perturbation is not attached to this model: it would have no effect."""
    parts = in_model_parts(perturbation)
    if not parts:
        return
    check_model(model)
    modules = set(model.modules())
    for part in parts:
        if not modules.issuperset(part.hooks):
            raise ValueError(
                f"this {type(part).__name__} is attached to another model (perhaps a copy), or another perturbation "
                "replaced it; call .attach(model) on the model you train"
            )


def clear(perturbation: Any) -> None:
    """Clear the draws of the in-model perturbations in a perturbation."""
    for part in in_model_parts(perturbation):
        part.clear()


def _eager_hook() -> Callable[..., Tensor]:
    """Return `_run_hook`, excluded from compilation: a compiled hook cannot detect a pass that checkpointing repeats.

    Replaces the global function, because models are pickled with its name. Lazy, because it imports the compiler. By
    default, the compiler uses one compiled layer for all layers of a class, whether they have hooks or not.
    """
    global _run_hook
    if not hasattr(_run_hook, "_torchdynamo_disable"):
        _run_hook = torch.compiler.disable(_run_hook)
        torch._dynamo.config.skip_nnmodule_hook_guards = False
    return _run_hook


def _run_hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    # Looked up through the layer, so that a deep copy of the model, such as an EMA, uses its copy of the hook.
    hook = layer.maxup_hook
    assert isinstance(hook, PerturbHook)
    return hook(next(iter((*args, *kwargs.values()))), output)

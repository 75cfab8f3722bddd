"""Compile a model for scoring: forward passes without gradients, whose outputs are only compared.

`torch.compile` traces the model, and inductor compiles the graph. On a GPU in half precision, `maxup.fusion.rewrite`
changes the graph first. In float32, and on other devices, nothing is rewritten. Weights are inputs of the graph, so
they are always current.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from maxup.dropout import drop_probability
from maxup.fusion import in_half_precision, rewrite

VARIANTS = 64  # recompilations allowed per module, for shapes and modes (training, scoring)


class ScoringCompiler:
    """Compile models for scoring and cache the last one. The cache is not pickled."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.compiled: Callable[..., Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": None, "compiled": None}

    @contextmanager
    def compile(self, model: nn.Module, *, dropout: bool = True) -> Iterator[nn.Module]:
        """Yield the model, or the one inside `torch.compile(model)`. Inside the context, its calls are compiled.

        Modules that you compiled with `module.compile()` are part of the compiled call. `dropout` is whether dropout
        stays active, with masks that the training pass shares.
        """
        inner: nn.Module = getattr(model, "_orig_mod", model)
        before = [(m, m._compiled_call_impl) for m in inner.modules() if m._compiled_call_impl is not None]
        if before and dropout and not is_compiled(model):
            refuse_shared_masks(inner)
        if self.compiled is None or self.model is not model:
            self.model, self.compiled = model, compile_for_scoring(model)
        for module, _ in before:
            module._compiled_call_impl = None
        inner._compiled_call_impl = self.compiled
        try:
            yield inner
        finally:
            inner._compiled_call_impl = None
            for module, compiled in before:
                module._compiled_call_impl = compiled


def compile_for_scoring(model: nn.Module) -> Callable[..., Any]:
    """Return a compiled function that calls the model, for passes without gradients.

    Copies share dropout masks with the training pass, so masks must come from the same code: eager operations, or
    inductor's if the model is already compiled.
    """
    allow_variants()
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # a hook may be registered later
    inner: nn.Module = getattr(model, "_orig_mod", model)
    if isinstance(inner, torch.jit.ScriptModule):
        raise ValueError(
            "compile=True cannot compile a TorchScript model; pass the original module, or remove compile=True"
        )
    compiled = is_compiled(model)

    def backend(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if in_half_precision(graph, inputs):
            rewrite(graph)
        return _inductor(graph, inputs, {"fallback_random": not compiled})

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner._call_impl(*args, **kwargs)

    call.__code__ = call.__code__.replace()  # Dynamo counts variants per code object, which objectives must not share
    return torch.compile(call, backend=backend, dynamic=False)


def is_compiled(model: nn.Module) -> bool:
    """Whether the whole model is compiled."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    # Dynamo does not compile the forward methods of torch's own containers when they are compiled in place.
    in_place = inner._compiled_call_impl is not None and not type(inner).__module__.startswith("torch.nn.")
    return inner is not model or in_place


def refuse_shared_masks(model: nn.Module) -> None:
    """Raise if a model of which only parts are compiled has active dropout."""
    if any(module.training and drop_probability(module) > 0 for module in model.modules()):
        raise ValueError(
            "compile=True cannot share dropout masks with a model of which only parts are compiled; use "
            "torch.compile(model), add dropout=False, or remove compile=True"
        )


def allow_variants() -> None:
    """Let torch.compile recompile a module for every shape and mode, up to `VARIANTS` times.

    This changes a global setting of Dynamo.
    """
    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # torch 2.6
    setattr(config, name, max(getattr(config, name), VARIANTS))


def _inductor(graph: GraphModule, inputs: Sequence[Any], config: dict[str, Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, inputs, config_patches=config)
    return compiled

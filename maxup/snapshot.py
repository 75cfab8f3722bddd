"""Snapshots of everything that a forward pass may change, to compare before and after."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from maxup.perturb.in_model import PerturbHook
from maxup.rng import get_rng_state

Snapshot = dict[str, Any]  # description of a piece of state -> a value that can be compared
HIDDEN = {"_parameters", "_buffers", "_modules", "training"}
DEPTH = 4
PLAIN = (bool, int, float, str, type(None))
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


def snapshot(modules: Iterable[nn.Module], functions: Mapping[str, Callable[..., Any]]) -> Snapshot:
    """Return the state of modules, the global random states, and the closures and globals of functions by name."""
    result = state(modules)
    for name, function in functions.items():
        result |= dict(_function_state(function, f"the {name} function"))
    devices = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_available() else []
    return result | {f"random state of {name}": value for name, value in get_rng_state(devices).items()}


def state(modules: Iterable[nn.Module]) -> Snapshot:
    """Return parameters, buffers, gradients, flags and attributes of modules. Tensors are stored as fingerprints."""
    return {name: value for module in modules for name, value in _module_state(module)}


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the names of everything that differs between two snapshots."""
    missing = object()
    return [name for name in before | after if not _same(before.get(name, missing), after.get(name, missing))]


def _module_state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, PerturbHook):
            continue  # it holds the draw of an in-model perturbation
        where = f"of {name}" if name else f"of {type(module).__name__}"
        for key, parameter in module._parameters.items():
            yield f"parameter {key!r} {where}", _freeze(parameter)
            yield f"gradient of {key!r} {where}", _freeze(None if parameter is None else parameter.grad)
        for key, buffer in module._buffers.items():
            yield f"buffer {key!r} {where}", _freeze(buffer)
        yield f"training flag {where}", module.training
        for key, value in vars(module).items():
            if key not in HIDDEN and "hook" not in key and not is_recomputed(module, key):
                yield f"attribute {key!r} {where}", _freeze(value)
        yield from _function_state(module.forward, f"the forward {where}")


def is_recomputed(module: nn.Module, key: str) -> bool:
    """Whether an attribute is a weight that legacy weight_norm or spectral_norm computes before every pass."""
    return f"{key}_orig" in module._parameters or f"{key}_g" in module._parameters


def _function_state(function: Any, where: str) -> Iterator[tuple[str, Any]]:
    return ((f"{name} of {where}", _freeze(value)) for name, value in function_values(function))


def function_values(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables of a function and the globals that it names. Nothing for functions of torch."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, types.FunctionType) or (function.__module__ or "").partition(".")[0] == "torch":
        return
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f"variable {name!r}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]


def _freeze(value: Any, depth: int = DEPTH) -> Any:
    """Return a copy of plain data and fingerprints of tensors; for other objects, their identity."""
    if isinstance(value, Tensor):
        return _fingerprint(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, nn.Module):  # unregistered, for example in a list; its buffers are not restored
        return ["module", id(value), *(_fingerprint(buffer) for buffer in value.buffers())]
    if depth and isinstance(value, Mapping):
        return {"mapping": [(_freeze(k, depth - 1), _freeze(v, depth - 1)) for k, v in value.items()]}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [type(value).__name__, *(_freeze(item, depth - 1) for item in value)]
    return id(value)


def _fingerprint(tensor: Tensor) -> Any:
    """Return shape, dtype and sums of the bits at several strides: they show a change, and need little memory."""
    about = [str(tensor.dtype), *tensor.shape]
    if tensor.layout != torch.strided or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_meta:
        return [*about, id(tensor)]
    tensor = tensor.detach()
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    bits = real.contiguous().view(BITS[real.element_size()]).flatten()
    return [*about, torch.stack([bits[::stride].sum(dtype=torch.long) for stride in (1, 2, 3, 5, 7)])]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return _same(a["mapping"], b["mapping"])
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))

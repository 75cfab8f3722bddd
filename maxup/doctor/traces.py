"""What a forward pass could leave behind, in a form that can be compared."""

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from maxup.doctor.case import Case
from maxup.side_effects import streams

Snapshot = dict[str, Any]  # name of a thing -> something that equals what it equalled
HIDDEN = {"_parameters", "_buffers", "_modules", "training"}
DEPTH = 4


def snapshot(case: Case) -> Snapshot:
    """Parameters, buffers, gradients, flags, attributes, random streams, and what the functions have in their closures.

    Example:
        >>> seen = []
        >>> noting = lambda model, x: (seen.append(1), model(x))[1]
        >>> case = Case(nn.Linear(3, 2), (torch.rand(4, 3), torch.zeros(4).long()), forward=noting)
        >>> before = snapshot(case)
        >>> _ = case.forward(case.model, case.batch[0])
        >>> changed(before, snapshot(case))
        ["global 'seen' of the forward function"]
    """
    found: Snapshot = dict(_of_model(case.model))
    for what in ("forward", "loss"):
        found |= dict(_of_function(getattr(case, what), f"the {what} function"))
    for what, stream in streams().items():
        found[f"random stream of {what}"] = stream
    if torch.cuda.is_available():
        found["random stream of CUDA"] = torch.cuda.get_rng_state().numpy().tobytes()
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """The names of what is no longer the same."""
    missing = object()
    return [name for name in before | after if not _same(before.get(name, missing), after.get(name, missing))]


def _of_model(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        where = f"of {name}" if name else f"of {type(module).__name__}"
        for key, parameter in module._parameters.items():
            yield f"parameter {key!r} {where}", _freeze(parameter)
            yield f"gradient of {key!r} {where}", _freeze(None if parameter is None else parameter.grad)
        for key, buffer in module._buffers.items():
            yield f"buffer {key!r} {where}", _freeze(buffer)
        yield f"training flag {where}", module.training
        for key, value in vars(module).items():
            if key not in HIDDEN and "hook" not in key:
                yield f"attribute {key!r} {where}", _freeze(value)
        yield from _of_function(module.forward, f"the forward {where}")


def _of_function(function: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Variables a function took from around it, and globals it names: where a pass can leave what no module shows."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, types.FunctionType) or function.__module__.partition(".")[0] == "torch":
        return
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f"variable {name!r} of {where}", _freeze(cell.cell_contents)
        except ValueError:  # not set yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global {name!r} of {where}", _freeze(function.__globals__[name])


def _freeze(value: Any, depth: int = DEPTH) -> Any:
    """A copy that later changes do not reach; of what is not plain data, its identity."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if depth and isinstance(value, Mapping):
        return {"mapping": [(_freeze(k, depth - 1), _freeze(v, depth - 1)) for k, v in value.items()]}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [type(value).__name__, *(_freeze(item, depth - 1) for item in value)]
    return id(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict) and isinstance(b, dict):
        return _same(a["mapping"], b["mapping"])
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))

"""Make the copies in one wide pass share the model's random numbers, as separate passes over the copies do.

A wide batch holds k copies, one after the other. A dropout layer would draw a different mask for each copy, and MaxUp
would maximize over masks. `RecordRandomOps` records what a pass over one copy draws. Under `shared_masks`, the wide
pass draws exactly that once, and uses it for every copy.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from maxup.errors import CannotShareError

FILLS = {f"aten::{name}_" for name in ("bernoulli", "uniform", "normal", "random", "exponential", "geometric")}
Recorded = list[tuple[OpOverload, tuple[int, ...]]]  # each random operation of a pass, and the shape it fills


class _Random(TorchDispatchMode):
    """Intercept every operation that advances a global random state."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        advanced, rewind = _watch_rng(_device(args, kwargs))
        out = func(*args, **kwargs)
        return self.random(func, args, kwargs, out, rewind) if advanced() else out

    def random(self, func: OpOverload, args: Any, kwargs: Any, out: Any, rewind: Callable[[], None]) -> Any:
        """Return the result of a random operation: `out`, or a replacement."""
        raise NotImplementedError(f"{type(self).__name__} must define random")


class RecordRandomOps(_Random):
    """Record the random operations of a pass over one copy."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Recorded = []

    def random(self, func: OpOverload, args: Any, kwargs: Any, out: Any, rewind: Callable[[], None]) -> Any:
        self.operations.append((func, _shape(out)))
        return out


class _Share(_Random):
    def __init__(self, recorded: Recorded, copies: int, size: int, instead: str) -> None:
        super().__init__()
        self.recorded, self.copies, self.size, self.instead = iter(recorded), copies, size, instead
        self.with_gradients = torch.is_grad_enabled()

    def random(self, func: OpOverload, args: Any, kwargs: Any, out: Any, rewind: Callable[[], None]) -> Any:
        shape = _shape(out)
        same, alone = next(self.recorded, (None, ()))
        if same is func and shape == alone:
            return out  # independent of the batch size: a mask of weights, or whether to skip a layer
        if same is not func or alone[:1] != (self.size,) or shape != (self.copies * self.size, *alone[1:]):
            raise self._refusal(func, shape)
        if func._schema.is_mutable and func._schema.name not in FILLS:
            raise self._refusal(func, shape)
        if self.with_gradients and _in_checkpoint():
            raise CannotShareError(
                f"activation checkpointing repeats the model's random operations ({func.name()}) in the backward pass, "
                f"where the copies cannot share them; {self.instead}"
            )
        parts = []
        for start in range(0, shape[0], self.size):
            rewind()  # every copy draws the same numbers, and the random state advances as for one copy
            parts.append(func(*_cut(args, start, self.size, shape[0]), **_cut(kwargs, start, self.size, shape[0])))
        if func._schema.is_mutable:
            return args[0]  # filled in place, part by part
        if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (self.size,) for leaf in tree_leaves(parts)):
            raise self._refusal(func, shape)
        return tree_map(lambda *leaves: torch.cat(leaves), *parts)

    def _refusal(self, func: OpOverload, shape: tuple[int, ...]) -> CannotShareError:
        return CannotShareError(
            f"the model draws random numbers of shape {shape} ({func.name()}) in a pass over {self.copies} copies, "
            f"which the copies cannot share; {self.instead}"
        )


def shared_masks(recorded: Recorded, copies: int, size: int, instead: str) -> AbstractContextManager[Any]:
    """Make the copies of a wide pass share the random numbers of one copy.

    Args:
        recorded: The random operations of a pass over one copy.
        copies: Number of copies in the wide batch, one after the other.
        size: Examples per copy.
        instead: What to do if random numbers cannot be shared, for the error message.

    Example:
        >>> dropout = torch.nn.Dropout()
        >>> with RecordRandomOps() as recorded:
        ...     _ = dropout(torch.ones(4, 8))
        >>> with shared_masks(recorded.operations, 2, 4, "use chunk_size=1"):
        ...     first, second = dropout(torch.ones(8, 8)).chunk(2)
        >>> torch.equal(first, second)
        True
    """
    return _Share(recorded, copies, size, instead) if recorded else nullcontext()


def _in_checkpoint() -> bool:
    """Whether this pass runs inside torch.utils.checkpoint, which repeats it in the backward pass."""
    if not torch.is_grad_enabled():  # reentrant checkpointing disables gradients
        return True
    top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top_hooks is None:  # torch 2.6
        return any(frame.f_globals.get("__name__") == "torch.utils.checkpoint" for frame, _ in walk_stack(None))
    hooks = top_hooks(True)
    return hooks is not None and "checkpoint" in getattr(hooks[0], "__qualname__", "")


def _watch_rng(device: torch.device) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Return two functions: one returns whether the global random state has advanced, the other restores it."""
    if device.type in ("cpu", "meta"):
        before = torch.get_rng_state()
        return lambda: not torch.equal(torch.get_rng_state(), before), lambda: torch.set_rng_state(before)
    module = torch.get_device_module(device)
    state = module.get_rng_state(device)
    return lambda: not torch.equal(module.get_rng_state(device), state), lambda: module.set_rng_state(state, device)


def _device(args: Any, kwargs: Any) -> torch.device:
    device = next((leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
    return device or torch.device(kwargs.get("device") or "cpu")


def _shape(out: Any) -> tuple[int, ...]:
    """Return the shape that a random operation fills: that of its first result."""
    return next((tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), ())


def _cut(values: Any, start: int, size: int, total: int) -> Any:
    """Return the arguments for one copy: its rows of every wide tensor, and sizes of one copy instead of all."""

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == total:
            return value[start : start + size]
        if isinstance(value, list | tuple) and value and value[0] == total and all(isinstance(v, int) for v in value):
            return [size, *value[1:]]
        return value

    return {k: cut(v) for k, v in values.items()} if isinstance(values, dict) else [cut(v) for v in values]

"""Copies in one wide pass share the model's random numbers, as copies in passes of their own do.

A wide batch holds k copies, one after the other. A dropout layer would draw a mask for each of them, and the maximum
would be taken over masks. `record` notes what a pass over one copy draws; under `shared_masks` the wide pass draws
exactly that, once, and uses it for every copy.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from maxup.batch import Batch, leaves
from maxup.isolation import drop_probability
from maxup.rng import get_rng_state
from maxup.validate import warn

FILLS = {f"aten::{name}_" for name in ("bernoulli", "uniform", "normal", "random", "exponential", "geometric")}
KINDS = 256  # of batches, of which what one copy draws is remembered
Recorded = list[tuple[OpOverload, tuple[int, ...]]]  # every random operation of a pass, and the shape it fills


class _Random(TorchDispatchMode):
    """Base: sees every operation that moves a global random stream."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        moved, rewind = _stream(_device(args, kwargs))
        out = func(*args, **kwargs)
        return self.random(func, args, kwargs, out, rewind) if moved() else out

    def random(self, func: OpOverload, args: Any, kwargs: Any, out: Any, rewind: Callable[[], None]) -> Any:
        """What a random operation returns instead of `out`."""
        raise NotImplementedError(f"{type(self).__name__} must define random")


class record(_Random):  # noqa: N801  (a context manager, in lower case like torch's)
    """Note the random operations of a pass over one copy.

    Example:
        >>> with record() as recorded:
        ...     _ = torch.nn.functional.dropout(torch.ones(2, 3))
        >>> [shape for _, shape in recorded.operations]
        [(2, 3)]
    """

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
            return out  # nothing of the batch in it: a mask of weights, or whether to skip a layer
        if same is not func or alone[:1] != (self.size,) or shape != (self.copies * self.size, *alone[1:]):
            raise self._refusal(func, shape)
        if func._schema.is_mutable and func._schema.name not in FILLS:
            raise self._refusal(func, shape)
        if self.with_gradients and _in_checkpoint():
            raise ValueError(
                f"activation checkpointing runs the model's random operations ({func.name()}) again in the backward "
                f"pass, where the copies do not share them; {self.instead}"
            )
        parts = []
        for start in range(0, shape[0], self.size):
            rewind()  # every copy draws the same, and the stream ends where one copy alone would leave it
            parts.append(func(*_cut(args, start, self.size, shape[0]), **_cut(kwargs, start, self.size, shape[0])))
        if func._schema.is_mutable:
            return args[0]  # filled in place, part by part
        if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (self.size,) for leaf in tree_leaves(parts)):
            raise self._refusal(func, shape)
        return tree_map(lambda *leaves: torch.cat(leaves), *parts)

    def _refusal(self, func: OpOverload, shape: tuple[int, ...]) -> ValueError:
        return ValueError(
            f"the model draws random numbers of shape {shape} ({func.name()}) in a pass over {self.copies} copies, "
            f"which the copies cannot share; {self.instead}"
        )


def shared_masks(recorded: Recorded, copies: int, size: int, instead: str) -> AbstractContextManager[Any]:
    """Let the copies of a wide pass share what one copy alone draws.

    Args:
        recorded: The random operations of a pass over one copy.
        copies: How many copies the wide batch holds, one after the other.
        size: Examples per copy.
        instead: What to do where random numbers cannot be shared, for the error message.

    Example:
        >>> dropout = torch.nn.Dropout()
        >>> with record() as recorded:
        ...     _ = dropout(torch.ones(4, 8))
        >>> with shared_masks(recorded.operations, 2, 4, "use chunk_size=1"):
        ...     first, second = dropout(torch.ones(8, 8)).chunk(2)
        >>> torch.equal(first, second)
        True
    """
    return _Share(recorded, copies, size, instead) if recorded else nullcontext()


@dataclass
class OneCopy:
    """A pass over one copy: what it drew, and its losses."""

    operations: Recorded
    """Torch's random operations."""
    moved: set[str]
    """The names of the global random streams that it moved."""
    after: dict[str, Any] | None
    """Where the streams were afterwards; None once it has been compared."""
    losses: Tensor


class WidePasses:
    """Passes over several copies at once, which share what a pass over one copy draws.

    The first pass of every kind of batch is preceded by one over a single copy. If that draws no random numbers, wide
    passes run as they are; compiled models stay compiled.

    Args:
        instead: What to do where random numbers cannot be shared, for error messages.
    """

    def __init__(self, instead: str) -> None:
        self.instead = instead
        self.known: dict[Any, OneCopy] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "known": {}}  # learned again where it is needed

    def kind(self, model: nn.Module, batch: Batch) -> Any:
        """What decides which random numbers a pass draws, as far as can be seen."""
        modes = tuple((module.training, drop_probability(module) > 0) for module in model.modules())
        return id(model), modes, tuple(leaf.shape for leaf in leaves(batch))

    def learn(self, kind: Any, model: nn.Module, one: Callable[[], Tensor], rewind: Callable[[], None]) -> None:
        """Run one copy alone, twice if it draws random numbers, and remember what it drew."""
        rewind()
        device = _device_of(model)
        before = get_rng_state(device)
        losses = one()
        after = get_rng_state(device)
        moved = {name for name in after if after[name] != before[name]}
        operations: Recorded = []
        if moved - {"Python", "numpy"}:
            if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules()):
                raise ValueError(f"a compiled model draws random numbers, which copies cannot share; {self.instead}")
            rewind()
            with record() as recorded:
                one()
            operations = recorded.operations
        if len(self.known) == KINDS:
            del self.known[next(iter(self.known))]
        self.known[kind] = OneCopy(operations, moved, after, losses.detach())

    def run(self, kind: Any, model: nn.Module, wide: Callable[[], Any], copies: int, size: int) -> Any:
        """The wide pass: whatever `wide` returns, its last part the losses, (copies * size,)."""
        one = self.known[kind]
        device = _device_of(model)
        before = get_rng_state(device)
        try:
            with shared_masks(one.operations, copies, size, self.instead):
                result = wide()
        except BaseException:
            del self.known[kind]  # run one copy again before the next
            raise
        after = get_rng_state(device)
        shared = one.moved == {name for name in after if after[name] != before[name]}
        if not shared or (one.after is not None and one.after != after):
            del self.known[kind]
            why = "cannot share" if one.after is not None else "did not draw in the first batch"
            raise ValueError(f"a pass over {copies} copies draws random numbers that the copies {why}; {self.instead}")
        if one.after is not None:
            one.after = None
            losses = result[-1].detach().view(copies, size)
            warn_of_change(one.losses, losses[0], losses, "a copy alone", "together with other copies")
        return result


def warn_of_change(before: Tensor, after: Tensor, losses: Tensor, what: str, when: str) -> None:
    """Warn of losses that change with what else is in the batch.

    Args:
        before: Losses of examples, (B,).
        after: The same in other company, (B,).
        losses: Those of all copies, (k, B): a change matters in proportion to how much the copies differ.
        what: Whose losses they are, for the warning.
        when: In which company, for the warning.
    """
    low = torch.is_autocast_enabled(after.device.type) or after.dtype in (torch.float16, torch.bfloat16)
    rounding = 0.05 if low else 1e-5 if after.device.type == "cpu" else 2e-3  # TF32, and other kernels for other sizes
    error = (after - before).abs()
    spread = (losses.amax(0) - losses.amin(0)).mean()
    if bool((error > rounding * (1 + before.abs())).any()) and bool(error.mean() > 0.02 * spread):
        warn(
            f"the losses of {what} change by up to {float(error.max()):.2g} {when}: the model or the loss mixes the "
            "examples of a batch, or draws random numbers that depend on the data, so the gradient is not exactly that "
            "of the worst copies"
        )


def _in_checkpoint() -> bool:
    """Whether this pass is within torch.utils.checkpoint, which repeats it in the backward pass."""
    if not torch.is_grad_enabled():  # reentrant: it turns gradients off
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and "checkpoint" in getattr(hooks[0], "__qualname__", "")


def _device_of(model: nn.Module) -> list[torch.device]:
    return list({parameter.device for parameter in model.parameters()})


def _stream(device: torch.device) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Functions that tell whether the device's global stream has moved since, and that rewind it."""
    if device.type in ("cpu", "meta"):
        before = torch.get_rng_state()
        return lambda: not torch.equal(torch.get_rng_state(), before), lambda: torch.set_rng_state(before)
    module = torch.get_device_module(device)
    state = module.get_rng_state(device)
    return lambda: not torch.equal(module.get_rng_state(device), state), lambda: module.set_rng_state(state, device)


def _device(args: Any, kwargs: Any) -> torch.device:
    found = next((leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
    return found or torch.device(kwargs.get("device") or "cpu")


def _shape(out: Any) -> tuple[int, ...]:
    """The shape that a random operation fills: that of its result, or of the first of several."""
    return next((tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), ())


def _cut(values: Any, start: int, size: int, whole: int) -> Any:
    """Arguments for one copy: its rows of every tensor of the wide batch, and sizes of one copy."""

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == whole:
            return value[start : start + size]
        if isinstance(value, list | tuple) and value and value[0] == whole and all(isinstance(v, int) for v in value):
            return [size, *value[1:]]
        return value

    return {k: cut(v) for k, v in values.items()} if isinstance(values, dict) else [cut(v) for v in values]

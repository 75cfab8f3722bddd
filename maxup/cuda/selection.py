"""Selection as one CUDA graph, inside a training loop that is not captured itself.

A small network on a fast GPU spends most of a step launching kernels, and selection launches m times as many. A graph
launches all of them at once. It replays fixed kernels on fixed memory and runs no Python code. So it is dropped when
the settings, the shapes, or what Python code can change in the modules change. Some replays are compared with an eager
selection.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from maxup.batch import leaves
from maxup.cuda.capture import is_preparing, record_syncs
from maxup.cuda.graph import captured_into
from maxup.dropout import drop_probability
from maxup.errors import a_type, error_message
from maxup.rng import record_restored
from maxup.snapshot import PLAIN, is_recomputed

EAGER = 2  # selections before a capture; the last one is watched
CHECKS = 2  # replays after a capture that are compared with an eager selection
CHECK_EVERY = 500  # replays until the next comparison: values outside the modules may have changed
MOST_CAPTURES = 5  # in a row, of which each is dropped before MANY replays
MANY = 100


class ModuleState:
    """What Python code can change in modules: attributes, hooks, children, and which tensors are weights and buffers.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> state = ModuleState([layer])
        >>> _ = layer.weight.data.zero_()
        >>> state.changed(), ModuleState([layer.eval()]).changed(), state.changed()
        ('', '', "attribute 'training' of Linear")
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.values, self.tables, self.tensors = list[Any](), list[Any](), list[Any]()
        for module in modules:
            for name, value in vars(module).items():
                if isinstance(value, (*PLAIN, Tensor)) and not is_recomputed(module, name):
                    self.values.append((module, name, value))
            for name in ("_forward_hooks", "_forward_pre_hooks", "_modules"):
                self.tables.append((module, name, dict(getattr(module, name))))
            for name in ("_parameters", "_buffers"):
                tensors = {key: tensor for key, tensor in getattr(module, name).items() if tensor is not None}
                self.tensors += [(module, name, key, tensor, tensor.data_ptr()) for key, tensor in tensors.items()]

    def changed(self) -> str:
        """Return what has changed since this object was made, or ""."""
        for module, name, value in self.values:
            now = vars(module).get(name, self)
            if now is not value and (isinstance(value, Tensor) or type(now) is not type(value) or now != value):
                return f"attribute {name!r} of {type(module).__name__}"
        for module, name, table in self.tables:
            if getattr(module, name) != table:
                return f"{name[1:]} of {type(module).__name__}"
        for module, name, key, tensor, address in self.tensors:
            if getattr(module, name).get(key) is not tensor or tensor.data_ptr() != address:
                return f"{key!r} of {type(module).__name__}"
        return ""


@dataclass
class Captured:
    """A graph, its memory, and the state of the modules that it depends on."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    worst: Any
    state: ModuleState
    replays: int = 0

    def replay(self, batch: Any) -> Any:
        """Return the winners of a batch."""
        for fixed, new in zip(self.inputs, tree_flatten(batch)[0], strict=True):
            if isinstance(fixed, Tensor):
                fixed.copy_(new.detach())
        self.graph.replay()
        self.replays += 1
        return self.worst.clone()


class CapturedSelection:
    """Find the winners of a batch: eagerly at first, then by replaying a CUDA graph.

    Attributes:
        captured: The graph, if there is one.
        captures: How often a graph was captured since one was last replayed often.
        reason: Why selection is not captured any more, or "".
    """

    def __init__(self) -> None:
        self.captured: Captured | None = None
        self.kind: Any = None
        self.shapes: Any = None
        self.eager = 0  # selections since the kind or the shapes changed
        self.captures = 0
        self.reason = ""

    def __getstate__(self) -> dict[str, Any]:
        return CapturedSelection().__dict__  # a graph cannot be copied or saved

    @property
    def bytes_kept(self) -> int:
        """GPU memory that the graph keeps for its passes."""
        if self.captured is None:
            return 0
        pool = tuple(self.captured.graph.pool())
        return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool)

    def __call__(
        self,
        select: Callable[[Any], Any],
        batch: Any,
        generator: Generator,
        *,
        kind: Any,
        modules: Callable[[], Iterable[nn.Module]],
        remember: Callable[[], Callable[[], None]],
        dropout: bool,
    ) -> Any:
        """Return the winners of a batch, a `RunningMax`.

        Args:
            select: Finds the winners eagerly.
            batch: The batch, on a GPU.
            generator: What the selection draws from.
            kind: What the selection depends on besides the values of the batch and the modules, to compare.
            modules: Returns the modules that the selection calls.
            remember: Returns a function that makes the next draws the same again.
            dropout: Whether dropout is active in the selection.
        """
        if self.reason or is_preparing():
            return select(batch)
        tensors, structure = tree_flatten(batch)
        shapes = structure, [_layout(leaf) for leaf in tensors]
        kind = kind, generator, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        if kind != self.kind:
            self._drop(kind, "a setting")
        elif self.captured is not None and (changed := self.captured.state.changed()):
            self._drop(kind, changed)
        if self.captured is None:
            self.eager = self.eager + 1 if shapes == self.shapes else 1
            self.shapes = shapes
        if self.reason or shapes != self.shapes or self.eager < EAGER:
            return select(batch)
        with torch.cuda.device_of(leaves(batch)[0]):
            if self.eager == EAGER:
                return self._watch(select, batch)
            if self.captured is None:
                self._capture(select, batch, generator, list(modules()), remember, dropout)
            if self.captured is None:
                return select(batch)
            return self._replay(select, batch, remember)

    def _watch(self, select: Callable[[Any], Any], batch: Any) -> Any:
        """Select eagerly, and find out if selection does what a graph cannot do."""
        self.eager -= 1  # if it raises, the next selection is watched
        with record_syncs() as syncs, record_restored() as restored:
            found = select(batch)
        self.eager += 1
        if restored:  # LayerDrop, for example
            self.reason = "the network draws random numbers on the CPU, which a CUDA graph cannot do"
        elif syncs:
            self.reason = "the network synchronizes with the device, which a CUDA graph cannot do"
        return found

    def _capture(
        self,
        select: Callable[[Any], Any],
        batch: Any,
        generator: Generator,
        modules: list[nn.Module],
        remember: Callable[[], Callable[[], None]],
        dropout: bool,
    ) -> None:
        """Capture a selection, without running it, or set `reason`."""
        tensors, structure = tree_flatten(batch)
        self.reason = _why_not(tensors, modules, dropout)
        if self.reason:
            return
        inputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in tensors]
        graph, rewind = torch.cuda.CUDAGraph(), remember()
        torch.clear_autocast_cache()  # what it holds may be freed before the next replay
        try:
            with captured_into(graph, [generator], mode="thread_local"):  # other threads may pin memory
                worst = select(tree_unflatten(inputs, structure))
            self.captured, self.captures = Captured(graph, inputs, worst, ModuleState(modules)), self.captures + 1
        except Exception as error:  # the caller selects eagerly, when the memory of the capture is free again
            self.reason = error_message(error)
        rewind()  # Python code may have drawn

    def _replay(self, select: Callable[[Any], Any], batch: Any, remember: Callable[[], Callable[[], None]]) -> Any:
        """Replay the graph. Some replays are compared with an eager selection, which is then returned."""
        assert self.captured is not None
        number = self.captured.replays
        if number == MANY:
            self.captures = 0
        if number >= CHECKS and number % CHECK_EVERY:
            return self.captured.replay(batch)
        rewind, before = remember(), torch.cuda.get_rng_state()
        found = self.captured.replay(batch)
        drew = not torch.equal(before, torch.cuda.get_rng_state())
        torch.cuda.set_rng_state(before)
        rewind()
        exact = select(batch)
        if drew:
            self.reason = "the network draws from the global random state, which a CUDA graph cannot restore"
        elif not _agree(found.losses, exact.losses):
            self.reason = "a graph finds other losses, because Python code computes something new in every step"
        if self.reason:
            self.captured = None
        return exact

    def _drop(self, kind: Any, changed: str) -> None:
        """Forget the graph, because something has changed. Stop capturing if this happens again and again."""
        self.captured, self.kind, self.shapes, self.eager = None, kind, None, 0
        if self.captures >= MOST_CAPTURES:
            times = f"it was captured {self.captures} times, and each time this changed soon: {changed}"
            self.reason = f"{times}; keep it fixed, or remove capture=True"


def _why_not(tensors: list[Any], modules: list[nn.Module], dropout: bool) -> str:
    """Return why a selection cannot be captured, or ""."""
    if dropout and any(m.training and drop_probability(m) > 0 for m in modules):
        return "copies cannot share dropout masks in a CUDA graph; add dropout=False"
    for leaf in tensors:
        if not isinstance(leaf, Tensor | None):
            return f"x or y holds {a_type(leaf)}; pass tensors"
    if len({leaf.device for leaf in tensors if leaf is not None}) > 1:
        return "the tensors of the batch are on several devices"
    for module in modules:
        for weight in (*module._parameters.values(), *module._buffers.values()):
            if weight is not None and type(weight) not in (Tensor, nn.Parameter, nn.Buffer):
                return f"a weight is {a_type(weight)}, which may be distributed or quantized"
    return ""


def _layout(leaf: Any) -> Any:
    """Return what a graph requires of a leaf of the batch."""
    return (leaf.shape, leaf.dtype, leaf.stride(), leaf.device) if isinstance(leaf, Tensor) else None


def _agree(losses: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two selections found the same losses (B,) of every copy, up to rounding.

    Example:
        >>> a, b = [torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])], [torch.tensor([1.0, 2.0])] * 2
        >>> _agree(a, a), _agree(a, b)
        (True, False)
    """
    a, b = torch.stack(losses), torch.stack(others)  # (m, B)
    spread = (b.amax(0) - b.amin(0)).mean()
    same = (a == b) | (a.isnan() & b.isnan())
    return bool(same.all()) or bool((a - b).abs().mean() <= 0.02 * spread)

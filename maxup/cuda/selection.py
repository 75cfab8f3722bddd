"""Selection as one CUDA graph, inside a training loop that is not captured itself.

A small network on a fast GPU spends most of a step launching kernels, and selection launches m times as many. A graph
launches all of them at once. It replays fixed kernels on fixed memory and runs no Python code, so it is dropped when
the batch, the settings, or the state of the model in Python change.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from maxup.cuda.capture import is_preparing, record_syncs
from maxup.cuda.graph import captured_into, on_device
from maxup.dropout import drop_probability
from maxup.errors import error_message

WARMUP = 2  # eager selections before a capture
CHECKS = 2  # replays that are compared with an eager selection
MOST_CAPTURES = 20  # in a row, of which each is dropped before `MANY` replays
MANY = 100
LAUNCH_BOUND = 0.8  # share of a selection's time on the GPU that the CPU takes to launch it
PLAIN = (bool, int, float, str, type(None))


class CapturedSelection:
    """Find the winners of a batch: eagerly at first, then by replaying a CUDA graph.

    Attributes:
        reason: Why selection is not captured any more, or "".
    """

    def __init__(self) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None
        self.kind: Any = None
        self.shapes: Any = None
        self.eager = 0  # selections since the kind or the shapes changed
        self.replays = self.captures = 0
        self.reason = ""

    def __getstate__(self) -> dict[str, Any]:
        return CapturedSelection().__dict__  # a graph cannot be copied or saved

    @property
    def bytes_kept(self) -> int:
        """GPU memory that the graph keeps for its passes."""
        if self.graph is None:
            return 0
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(self.graph.pool()))

    def __call__(
        self,
        select: Callable[[Any], Any],
        batch: Any,
        generator: Generator,
        *,
        kind: Any,
        modules: Iterable[nn.Module],
        remember: Callable[[], Callable[[], None]],
        dropout: bool = True,
        if_launch_bound: bool = False,
    ) -> Any:
        """Return the winners of a batch, a `RunningMax`.

        Args:
            select: Finds the winners eagerly.
            batch: The batch, on a GPU.
            generator: What the selection draws from.
            kind: What the selection depends on besides the values of the batch and the modules, to compare.
            modules: The modules that the selection calls.
            remember: Returns a function that makes the next draws the same again.
            dropout: Whether dropout is active in the selection.
            if_launch_bound: Capture only if launching takes most of the time of a selection.
        """
        if self.reason or is_preparing():
            return select(batch)
        tensors, structure = tree_flatten(batch)
        shapes = structure, [_layout(leaf) for leaf in tensors]
        kind = kind, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        if kind != self.kind or (self.graph is not None and not self.state.is_unchanged()):
            self._drop(kind)
        if self.graph is None:
            self.eager = self.eager + 1 if shapes == self.shapes else 1
            self.shapes = shapes
        if shapes != self.shapes or self.reason:
            return select(batch)
        with on_device(generator.device):
            if self.eager < WARMUP:
                return select(batch)
            if self.eager == WARMUP:
                return self._watch(select, batch)
            if self.graph is None:
                modules = list(modules)
                self.reason = _why_not(tensors, modules, dropout) or self._why_not_worth_it(if_launch_bound)
                if self.reason:
                    return select(batch)
                rewind = remember()
                try:
                    self._capture(select, batch, generator, modules)
                except Exception as error:
                    self._drop(None)
                    self.reason = error_message(error)
                    rewind()
                    return select(batch)
            return self._replay(select, batch, remember)

    def _watch(self, select: Callable[[Any], Any], batch: Any) -> Any:
        """Select eagerly. Record synchronizations, and the times on the CPU and the GPU."""
        self.events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with record_syncs() as syncs:
            start = time.perf_counter()
            self.events[0].record()
            found = select(batch)
            self.events[1].record()
            self.seconds = time.perf_counter() - start
        if syncs:
            self.reason = "the network synchronizes with the device, which a CUDA graph cannot do"
        return found

    def _why_not_worth_it(self, if_launch_bound: bool) -> str:
        start, end = self.events
        end.synchronize()
        bound = 1000 * self.seconds > LAUNCH_BOUND * start.elapsed_time(end)
        return "" if bound or not if_launch_bound else "the GPU is busy while the CPU launches kernels"

    def _capture(
        self, select: Callable[[Any], Any], batch: Any, generator: Generator, modules: list[nn.Module]
    ) -> None:
        tensors, structure = tree_flatten(batch)
        self.inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in tensors]
        graph = torch.cuda.CUDAGraph()
        torch.clear_autocast_cache()  # what it holds may be freed before the next replay
        with captured_into(graph, [generator], mode="thread_local"):  # other threads may pin memory
            self.worst = select(tree_unflatten(self.inputs, structure))
        self.graph, self.state = graph, ModuleState(modules)
        self.replays, self.captures = 0, self.captures + 1

    def _replay(self, select: Callable[[Any], Any], batch: Any, remember: Callable[[], Callable[[], None]]) -> Any:
        """Replay the graph. The first times, also select eagerly, to see that the graph does the same."""
        assert self.graph is not None
        for fixed, new in zip(self.inputs, tree_flatten(batch)[0], strict=True):
            if isinstance(fixed, Tensor):
                fixed.copy_(new)
        check = self.replays < CHECKS
        rewind, before = (remember(), torch.cuda.get_rng_state()) if check else (None, None)
        self.graph.replay()
        found = self.worst.clone()
        self.replays += 1
        if rewind is None or before is None:
            if self.replays == MANY:
                self.captures = 0
            return found
        drew = not torch.equal(before, torch.cuda.get_rng_state())
        torch.cuda.set_rng_state(before)
        rewind()
        exact = select(batch)
        if drew:
            self._drop(None)
            self.reason = "the network draws from the global random state, which a CUDA graph cannot restore"
        elif not _agree(found.losses, exact.losses):
            self._drop(None)
            self.reason = "a graph finds other losses, because Python code computes something new in every step"
        return exact

    def _drop(self, kind: Any) -> None:
        """Forget the graph. Stop capturing if this happens again and again."""
        self.graph = self.worst = self.inputs = self.state = None  # type: ignore[assignment]
        self.kind, self.shapes, self.eager = kind, None, 0
        if self.captures >= MOST_CAPTURES:
            self.reason = "the settings, or the state of the model in Python, change all the time"


class ModuleState:
    """What Python code can change in modules: plain attributes, hooks, and which tensors are weights and buffers."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self.values = [(vars(m), name, v) for m in modules for name, v in vars(m).items() if isinstance(v, PLAIN)]
        hooks = [hook for m in modules for hook in (m._forward_hooks, m._forward_pre_hooks)]
        self.hooks = [(hook, len(hook)) for hook in hooks]
        holders = [holder for m in modules for holder in (m._parameters, m._buffers)]
        self.tensors = [(h, name, t, t.data_ptr()) for h in holders for name, t in h.items() if t is not None]

    def is_unchanged(self) -> bool:
        """Whether nothing has changed since this object was made.

        Example:
            >>> layer = nn.Linear(2, 2)
            >>> state = ModuleState([layer])
            >>> _ = layer.weight.data.zero_()
            >>> state.is_unchanged(), ModuleState([layer.eval()]).is_unchanged(), state.is_unchanged()
            (True, True, False)
        """
        return (
            all((now := attributes.get(name, self)) is v or now == v for attributes, name, v in self.values)
            and all(len(hooks) == count for hooks, count in self.hooks)
            and all(
                holder.get(name) is tensor and tensor.data_ptr() == address
                for holder, name, tensor, address in self.tensors
            )
        )


def _why_not(tensors: list[Any], modules: list[nn.Module], dropout: bool) -> str:
    """Return why a selection cannot be captured, or ""."""
    if dropout and any(m.training and drop_probability(m) > 0 for m in modules):
        return "copies cannot share dropout masks in a CUDA graph; add dropout=False"
    if not all(isinstance(leaf, Tensor | None) for leaf in tensors):
        return "the batch holds something other than tensors"
    if len({leaf.device for leaf in tensors if leaf is not None}) > 1:
        return "the tensors of the batch are on several devices"
    weights = [tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())]
    if any(type(w) not in (Tensor, nn.Parameter, nn.Buffer) for w in weights if w is not None):
        return "the weights are distributed or quantized tensors"
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

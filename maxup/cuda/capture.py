"""A training step as one CUDA graph: augmentation, selection, forward, backward and optimizer step.

The eager step function itself is captured, so there is one definition of a step. A graph replays fixed kernels on fixed
memory: shapes, m and the model must not change, and Python control flow runs only once, during capture.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.cuda.graph import WARMUP, captured_into
from maxup.dropout import drop_probability
from maxup.rng import get_rng_state

Batch = tuple[Tensor, ...]


class CapturedStep:
    """A step that runs eagerly a few times, is then captured, and is captured again when `key` changes.

    A batch of another shape than the captured one runs eagerly.

    Args:
        step: Trains on a batch and returns the loss.
        key: Returns what the graph depends on besides the batch, such as m.
        generators: Returns the generators that the step uses besides the global one.
        seed: Called before each capture and replay, to seed generators for the step.
        replayed: Called after each replay, to update what the step counts in Python.
        say: Called with the reason if the step turns out to be unsafe to capture.
        needs_eager: Returns whether a step must run eagerly.

    Attributes:
        preparing: Whether the last call prepared the graph: an eager step, which may compile, or the capture.
    """

    def __init__(
        self,
        step: Callable[[Any], Tensor],
        *,
        key: Callable[[], Any],
        generators: Callable[[], list[Generator]],
        seed: Callable[[], None],
        replayed: Callable[[], None],
        say: Callable[[str], None],
        needs_eager: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step, self.key, self.generators, self.say, self.needs_eager = step, key, generators, say, needs_eager
        self.seed, self.replayed = seed, replayed
        self.side: torch.cuda.Stream | None = None  # for eager steps, on the GPU of the batches
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captured_for: Any = None
        self.eager: float = 0  # eager steps since the key changed
        self.preparing = False
        self.shapes: list[torch.Size] = []  # of the graph, or of the last batch if there is none

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch and return the loss."""
        with torch.cuda.device_of(batch[0]):
            return self._train(batch)

    def _train(self, batch: Batch) -> Tensor:
        if self.captured_for != self.key():
            self.graph, self.captured_for, self.eager = None, self.key(), min(self.eager, 0)
        shapes, expected = [part.shape for part in batch], self.shapes
        if self.graph is None:
            self.shapes = shapes
        if self.eager < WARMUP:
            # A step that checks the selection synchronizes, so it must not be the monitored one, the last.
            self.eager += not (self.eager == WARMUP - 1 and self.needs_eager())
            self.preparing = self.eager > 0  # not if the step cannot be captured
            return self._eager_step(batch)
        self.preparing = self.graph is None
        if shapes != expected or self.needs_eager():  # a shape runs eagerly once before it is captured
            return self.step(batch)
        self.seed()  # a graph reads the seeds of its registered generators when it is replayed
        counted = self.graph is None  # capturing runs the Python code, which counts the step
        graph = self.graph or self._capture(batch)
        for fixed, new in zip(self.batch, batch, strict=True):
            fixed.copy_(new)
        graph.replay()
        if not counted:
            self.replayed()
        return self.loss.clone()

    def _eager_step(self, batch: Batch) -> Tensor:
        """Run a step on the side stream. The last one is monitored; earlier ones may still initialize things."""
        before, monitored = get_rng_state([batch[0].device]), self.eager == WARMUP
        self.side = self.side or torch.cuda.Stream()
        self.side.wait_stream(torch.cuda.current_stream())
        preparing = _preparing() if self.eager > 0 else nullcontext()  # not if the step cannot be captured
        with torch.cuda.stream(self.side), preparing, record_syncs() if monitored else nullcontext() as syncs:
            loss = self.step(batch)
        torch.cuda.current_stream().wait_stream(self.side)
        if monitored:
            reason = "synchronizes with the device, which a CUDA graph cannot do" if syncs else ""
            after = get_rng_state([batch[0].device])
            if drawn := [name for name in after if after[name] != before[name]]:  # functional dropout, LayerDrop
                reason = f"draws from the global random state of {drawn[-1]}, which a CUDA graph cannot restore"
            if reason:
                self.say(f"the step is not captured: the network {reason}")
                self.eager = -math.inf  # never try again
        return loss

    def _capture(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self.batch = tuple(tensor.clone() for tensor in batch)
        graph = torch.cuda.CUDAGraph()
        with captured_into(graph, self.generators()):
            self.loss = self.step(self.batch)
        self.graph = graph
        return graph


_depth = 0  # of captured steps that run eagerly to prepare their capture


def is_preparing() -> bool:
    """Whether an eager step of a `CapturedStep` is running. What is inside needs no separate graph."""
    return _depth > 0


@contextmanager
def _preparing() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


@contextmanager
def record_syncs() -> Iterator[list[str]]:
    """Yield a list that holds, on exit, the warnings about synchronizing CUDA operations."""
    mode, syncs = torch.cuda.get_sync_debug_mode(), list[str]()
    with warnings.catch_warnings(action="ignore"):  # torch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield syncs
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            syncs.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def capture_step(
    step: Callable[[Any], Tensor], task: Any, *, stage: Callable[[], int], say: Callable[[str], None]
) -> CapturedStep:
    """Return a task's step as one CUDA graph, captured again when m or the stage changes.

    Args:
        step: Trains on a batch and returns the loss.
        task: Has the attributes `objective` and `generator`.
        stage: Returns the number of the current training stage.
        say: Called with the reason if the step turns out to be unsafe to capture.
    """
    objective = task.objective

    def replayed() -> None:
        objective.step += 1

    def generators() -> list[Generator]:
        return [g for g in (objective.generator, task.generator) if g is not None]

    def key() -> Any:
        return stage(), objective.generator, objective.depends_on()

    return CapturedStep(
        step,
        key=key,
        generators=generators,
        seed=objective.seed_step,
        replayed=replayed,
        say=say,
        needs_eager=objective.needs_eager,
    )


def why_not_capturable(
    model: nn.Module, *, device: torch.device, processes: int, fixed_shapes: bool, accumulate: int, precision: str
) -> str:
    """Return why a step cannot be captured, or an empty string if it can."""
    if device.type != "cuda":
        return "no CUDA device"
    if processes > 1:
        return "several processes"
    if not fixed_shapes:
        return "batches of different sizes"
    if accumulate != 1:
        return f"optim.accumulate is {accumulate}"
    if precision not in ("no", "bf16"):
        return f"precision is {precision}"
    dropping = [type(module).__name__ for module in model.modules() if drop_probability(module) > 0]
    return f"active {dropping[0]}" if dropping else ""

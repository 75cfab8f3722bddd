"""A whole training step as one CUDA graph: augmentation, selection, forward, backward and the optimizer's step.

The same function that makes a plain step is captured, so there is one definition of a step. A graph replays fixed
kernels on fixed memory: shapes, m and the model must not change, and what Python decides is decided once.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.cuda.graph import WARMUP
from maxup.isolation import drop_probability

Batch = tuple[Tensor, ...]


class Captured:
    """A step that is captured once it has run plainly a few times, and captured anew when `key` changes.

    Args:
        step: Makes a step on a batch and returns its loss.
        key: What the graph depends on besides the batch, such as m.
        generators: Random generators the step draws from, besides the global one.
        replayed: Called after every replay, for what the step counts in Python.
        say: Told why, where capturing turns out to be unsafe.
    """

    def __init__(
        self,
        step: Callable[[Any], Tensor],
        *,
        key: Callable[[], Any],
        generators: Callable[[], list[Generator]],
        replayed: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.step, self.key, self.generators, self.replayed, self.say = step, key, generators, replayed, say
        self.side = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captured_for: Any = None
        self.plain: float = 0  # plain steps made since the key changed

    def __call__(self, batch: Batch) -> Tensor:
        """Make a step on a batch; returns its loss."""
        if self.captured_for != self.key():
            self.graph, self.captured_for, self.plain = None, self.key(), min(self.plain, 0)
        if self.plain < WARMUP:
            self.plain += 1
            return self._beside(batch)
        counted = self.graph is None  # by the Python that runs while capturing
        graph = self.graph or self._capture(batch)
        for fixed, new in zip(self.batch, batch, strict=True):
            fixed.copy_(new)
        graph.replay()
        if not counted:
            self.replayed()
        return self.loss.clone()

    def _beside(self, batch: Batch) -> Tensor:
        """A plain step on the side stream, the last of them watched: those before may still initialize things."""
        before, watched = torch.cuda.get_rng_state(), self.plain == WARMUP
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side), _waits() if watched else nullcontext() as waits:
            loss = self.step(batch)
        torch.cuda.current_stream().wait_stream(self.side)
        if watched:
            reason = "reads values back from the device, for which a graph cannot wait" if waits else ""
            if not torch.equal(before, torch.cuda.get_rng_state()):  # dropout that is no layer, say
                reason = "draws from CUDA's stream, which a graph cannot rewind"
            if reason:
                self.say(f"the step is not captured: the network {reason}")
                self.plain = -math.inf  # for good
        return loss

    def _capture(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self.batch = tuple(tensor.clone() for tensor in batch)
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators():
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self.loss = self.step(self.batch)
        self.graph = graph
        return graph


@contextmanager
def _waits() -> Iterator[list[str]]:
    """What makes the host wait for the device meanwhile: a list that is filled."""
    mode, found = torch.cuda.get_sync_debug_mode(), list[str]()
    with warnings.catch_warnings(action="ignore"):  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    for warning in said:
        if "called a synchronizing" in str(warning.message):
            found.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def captured(
    step: Callable[[Any], Tensor], task: Any, *, stage: Callable[[], int], say: Callable[[str], None]
) -> Captured:
    """A task's step as one CUDA graph, captured anew when m or the stage changes.

    `say` is told where capturing turns out unsafe.
    """
    objective = task.objective

    def replayed() -> None:
        objective.step += 1

    def generators() -> list[Generator]:
        return [g for g in (objective.generator, task.generator) if g is not None]

    def key() -> Any:
        return stage(), objective.depends_on()

    return Captured(step, key=key, generators=generators, replayed=replayed, say=say)


def reason_against(
    model: nn.Module, *, device: torch.device, processes: int, fixed_shapes: bool, accumulate: int, precision: str
) -> str:
    """Why a step cannot be captured, in a few words; empty where it can."""
    if device.type != "cuda":
        return "no CUDA device"
    if processes > 1:
        return "several processes"
    if not fixed_shapes:
        return "batches differ in size"
    if accumulate != 1:
        return f"accumulate is {accumulate}"
    if precision not in ("no", "bf16"):
        return f"precision is {precision}"
    dropping = [type(module).__name__ for module in model.modules() if drop_probability(module) > 0]
    return f"active {dropping[0]}" if dropping else ""

"""CUDA graphs: capture GPU work once, then replay it."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Generator

WARMUP = 3  # eager calls before capture, on a side stream, to finish lazy initialization


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one. Streams and graphs belong to the current GPU, and capture its work only."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def captured_into(
    graph: torch.cuda.CUDAGraph, generators: Iterable[Generator] = (), mode: str = "global"
) -> Iterator[None]:
    """Capture the work inside, which draws from these generators besides the global one.

    To destroy another graph would end the capture, so garbage is collected before and not during it.
    """
    generators = list(generators)
    for generator in generators:
        graph.register_generator_state(generator)
    gc.collect()
    collects, stream = gc.isenabled(), torch.cuda.current_stream()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            yield
    except BaseException:
        torch.cuda.set_stream(stream)  # a failed capture leaves its own
        _leave_capture(generators)
        raise
    finally:
        if collects:
            gc.enable()


def _leave_capture(generators: list[Generator]) -> None:
    """Make random generators work again after a failed capture, which leaves them waiting for its end."""
    spare = torch.cuda.CUDAGraph()
    with suppress(RuntimeError), warnings.catch_warnings(action="ignore"):
        for generator in generators:
            spare.register_generator_state(generator)
        with torch.cuda.graph(spare, capture_error_mode="thread_local"):
            torch.zeros(1, device="cuda")


def capture_graph(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture a function that works on fixed memory of the current GPU.

    The function first runs WARMUP times; the caller must undo its side effects.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with captured_into(graph):
        work()
    return graph

"""CUDA graphs: capture GPU work once, then replay it."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Generator

WARMUP = 3  # eager calls before capture, on a side stream, to finish lazy initialization


@contextmanager
def captured_into(
    graph: torch.cuda.CUDAGraph, generators: Iterable[Generator] = (), mode: str = "global"
) -> Iterator[None]:
    """Capture the work inside on the current GPU. It draws from these generators besides the global one.

    Destroying another graph would end the capture, so garbage is collected before and not during it.
    """
    generators = list(generators)
    for generator in generators:
        graph.register_generator_state(generator)
    gc.collect()
    collects, stream = gc.isenabled(), torch.cuda.current_stream()
    pool = torch.cuda.graph_pool_handle()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
            yield
    except BaseException:
        torch.cuda.set_stream(stream)  # a failed capture leaves its own
        _end_allocation(stream.device_index, pool)
        _leave_capture(generators)
        raise
    finally:
        if collects:
            gc.enable()


def _end_allocation(device: int, pool: tuple[int, int]) -> None:
    """Let the allocator leave a failed capture. Some versions of torch do not, and then free no cached memory."""
    for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):  # the second is of torch 2.6
        if hasattr(torch._C, name):
            with suppress(RuntimeError):  # it has left
                getattr(torch._C, name)(device, pool)
            return


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

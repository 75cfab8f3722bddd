"""CUDA graphs: capture GPU work once, then replay it."""

from collections.abc import Callable

import torch

WARMUP = 3  # eager calls before capture, on a side stream, to finish lazy initialization


def capture_graph(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture a function that works on fixed memory.

    The function first runs WARMUP times; the caller must undo its side effects.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph

"""Work on the GPU recorded once and replayed, as one CUDA graph."""

from collections.abc import Callable

import torch

WARMUP = 3  # plain calls first, on a side stream: lazy initialization must be over


def record(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record what a function does on fixed memory; it runs a few times before, which the caller has to undo."""
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

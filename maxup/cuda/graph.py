"""CUDA graphs: capture GPU work once, then replay it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

WARMUP = 3  # eager calls before capture, on a side stream, to finish lazy initialization


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one. Streams and graphs belong to the current GPU, and capture its work only."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
    with torch.cuda.graph(graph):
        work()
    return graph

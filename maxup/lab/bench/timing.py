"""Time several functions that alternate in one process, and compare them with the standard step."""

import time
from collections.abc import Callable, Mapping

import torch

WARMUP = 2  # rounds before the first one that counts


def interleaved(
    variants: Mapping[str, Callable[[], object]], rounds: int, device: torch.device | str, *, calls: int = 1
) -> dict[str, list[float]]:
    """Return the seconds per call of every variant, one value per round. The variants alternate.

    Args:
        variants: Functions by name.
        rounds: Rounds that count. Two more warm up.
        device: On CUDA, the clock is read after the device has finished.
        calls: Calls per round. On a GPU several calls overlap with their launches, as in a training loop.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    on_gpu = torch.device(device).type == "cuda"
    for round_ in range(rounds + WARMUP):
        for name, run in variants.items():
            if on_gpu:
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                run()
            if on_gpu:
                torch.cuda.synchronize(device)
            if round_ >= WARMUP:
                times[name].append((time.perf_counter() - start) / calls)
    return times


def floor(m: int, forward: float, standard: float) -> float:
    """Return the least cost of exact selection, relative to a standard step: one step, and m passes without a graph.

    Example:
        >>> floor(4, forward=0.25, standard=1.0)
        2.0
    """
    return 1 + m * forward / standard

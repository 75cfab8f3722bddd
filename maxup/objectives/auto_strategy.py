"""`strategy="auto"`: measure whether to forward the winners again or to keep all graphs, and use the faster one."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed

from maxup.batch import Batch, device_of, leaves

ROUNDS = 3  # timed runs per strategy, after one warmup
STRATEGIES = "recompute", "retain"


class AutoStrategy:
    """Remember the faster strategy of every shape.

    With several processes the choice depends on m only: all ranks measure in the same step, on batches whose shapes may
    differ, and use the strategy with the smaller total time.
    """

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}

    def get(self, batch: Batch, m: int) -> str:
        """Return the strategy for this batch; "recompute" if it was not measured."""
        return self.chosen.get(_key(batch, m), "recompute")

    def set(self, batch: Batch, m: int, strategy: str) -> None:
        """Replace the strategy for this batch."""
        self.chosen[_key(batch, m)] = strategy

    def choose(self, batch: Batch, m: int, run: Callable[[str], Any]) -> str:
        """Return the strategy for this batch, after measuring it if it is new.

        Args:
            batch: x and y.
            m: Copies per example.
            run: Runs forward and backward with a strategy, without side effects.
        """
        key = _key(batch, m)
        if key not in self.chosen:
            device = device_of(batch)
            seconds = torch.tensor(measure(run, device), device=device)
            if _several_processes():
                distributed.all_reduce(seconds)
            self.chosen[key] = STRATEGIES[int(seconds.argmin())]
        return self.chosen[key]


def _several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _key(batch: Batch, m: int) -> str:
    shapes = [] if _several_processes() else [str(tuple(leaf.shape)) for leaf in leaves(batch)]
    return ", ".join([f"m={m}", *shapes])


def measure(run: Callable[[str], Any], device: torch.device) -> list[float]:
    """Return the shortest time of each strategy in seconds; infinity if it fails.

    "retain" fails if the model has BatchNorm, if its random numbers cannot be shared, or if memory runs out.
    """
    best = dict.fromkeys(STRATEGIES, math.inf)
    failed = set[str]()
    for number in range(1 + ROUNDS):
        for strategy in STRATEGIES:
            if strategy in failed:
                continue
            try:
                seconds = _time(partial(run, strategy), device)
            except Exception:  # "recompute" is chosen if both fail, and the step that follows raises the error
                failed.add(strategy)
                best[strategy] = math.inf  # it may also fail after a round that worked
                continue
            if number:
                best[strategy] = min(best[strategy], seconds)
    return list(best.values())


def _time(function: Callable[[], Any], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    function()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)

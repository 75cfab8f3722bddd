"""A stand-in for CUDA graphs on a CPU: it records operations, and replays them into the same tensors."""

from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maxup import MaxUp


class FakeGraph:
    capturing = False

    def __init__(self):
        self.operations = []

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, out in self.operations:
            inputs = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            for old, new in zip(tree_leaves(out), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and _storage(old) not in inputs and old.numel():  # not a view of an input
                    old.detach().copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, operations):
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, out))
        return out


def _storage(tensor):
    return tensor.untyped_storage()._cdata


@contextmanager
def captured_into(graph, generators=(), mode="global"):
    """Record without effect on the generators, as a capture does."""
    states = [generator.get_state() for generator in generators]
    FakeGraph.capturing = True
    try:
        with _Recorder(graph.operations):
            yield
    finally:
        FakeGraph.capturing = False
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def capture_on_a_cpu(monkeypatch):
    """Let `MaxUp(capture=True)` capture on a CPU."""
    monkeypatch.setattr("maxup.cuda.selection.captured_into", captured_into)
    monkeypatch.setattr("maxup.cuda.selection.record_syncs", lambda: nullcontext([]))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    monkeypatch.setattr(MaxUp, "_can_capture", lambda self, device: self.capture)

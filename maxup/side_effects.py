"""Selecting leaves no trace: after `untraced` the model and the caller's random streams are as if nothing had run."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from maxup.checks import is_capturing, leaves
from maxup.perturb.draws import Batch


@contextmanager
def untraced(model: nn.Module, batch: Batch, *, norm: str = "batch") -> Iterator[Callable[[], None]]:
    """Run forward passes that leave no trace, whether they end well or raise.

    Kept: BatchNorm's statistics, every other buffer, training flags, and the random streams of torch (on the CPU and on
    the model's devices), Python and numpy. The autocast cache is emptied, because casts cached without a graph would
    be used again with one, and lose gradients. Gradients are the caller's matter (`torch.no_grad`).

    Args:
        model: The model about to be called.
        batch: What it is called with, for the device.
        norm: "batch" makes train-mode BatchNorm use the statistics of the batch it sees, "running" the running ones.

    Yields:
        A function that rewinds the streams, so that the next forward pass sees the same dropout masks as the last.
    """
    device = leaves(batch)[0].device
    modules = list(model.modules())
    flags = [(module, module.training) for module in modules]
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    buffers = [
        (module._buffers, name, buffer, buffer._version, buffer.clone())
        for module in modules
        if not isinstance(module, _BatchNorm)
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for module in modules for p in module._parameters.values() if p is not None} | {device}
    if is_capturing(device):
        _refuse_dropout(modules)
        devices = {d for d in devices if d.type != "cuda"}  # whose stream a graph registers and advances by itself
    rewind = remember_random(devices)
    stash = [_silence(layer, norm) for layer in norms]
    try:
        yield rewind
    finally:
        for layer, before in zip(norms, stash, strict=True):
            layer.track_running_stats = True
            layer._buffers.update(before)
        for holder, name, buffer, version, copy in buffers:
            holder[name] = buffer
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
        for module, training in flags:
            if module.training != training:
                module.training = training
        rewind()
        torch.clear_autocast_cache()


def autocast(batch: Batch, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Run in this precision; None leaves it as it is."""
    if dtype is None:
        return nullcontext()
    return torch.autocast(leaves(batch)[0].device.type, dtype, enabled=dtype != torch.float32)


@contextmanager
def untouched(batch: Batch, who: str) -> Iterator[None]:
    """Refuse what draws from the global streams (which are rewound for every copy) or changes the batch in place."""
    before, versions = streams(), [leaf._version for leaf in leaves(batch)]
    rewind = remember_random([])
    yield
    if before != streams():
        rewind()
        raise ValueError(
            f"{who} drew from a global random stream, which is rewound for every copy, so that all copies would be the "
            "same; draw from the generator that draw(batch, generator) gets, or wrap a transform as Transform(...)"
        )
    if versions != [leaf._version for leaf in leaves(batch)]:
        raise ValueError(f"{who} changed the batch in place; return new tensors instead")


def streams() -> dict[str, Any]:
    """Where the global random streams are, by name, to be compared."""
    numpy = sys.modules.get("numpy")
    kind, keys, *rest = numpy.random.get_state() if numpy else (None, b"")
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "Python": random.getstate(),
        "numpy": (kind, bytes(keys), tuple(rest)),
    }


def remember_random(devices: Iterable[torch.device]) -> Callable[[], None]:
    """Remember the global random streams; the function returned puts them back."""
    cpu, python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy else None
    others = [(d, torch.get_device_module(d)) for d in devices if d.type not in ("cpu", "meta")]
    states = [(d, module, module.get_rng_state(d)) for d, module in others]

    def rewind() -> None:
        torch.set_rng_state(cpu)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(legacy)
        for d, module, state in states:
            module.set_rng_state(state, d)

    return rewind


def _silence(module: _BatchNorm, norm: str) -> dict[str, Tensor | None]:
    """Make a BatchNorm layer in training stop recording; returns the buffers taken away from it."""
    if norm == "running":
        module.training = False
        return {}
    if not isinstance(module, nn.SyncBatchNorm):
        module.track_running_stats = False
        return {}
    # Out of training it does not wait for the other processes; without buffers it uses its own batch's statistics.
    before = {name: module._buffers[name] for name in ("running_mean", "running_var")}
    module.training = False
    module._buffers.update(running_mean=None, running_var=None)
    return before


def _refuse_dropout(modules: list[nn.Module]) -> None:
    for module in modules:
        if module.training and drop_probability(module) > 0:
            raise RuntimeError(
                f"a CUDA graph cannot rewind the random stream, so copies would not share the masks of this "
                f"{type(module).__name__}; select outside the graph, or train without dropout"
            )


def drop_probability(module: nn.Module) -> float:
    """How likely a layer of torch's own drops something in training."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    return module.dropout if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) else 0.0

"""Selecting leaves no trace: after `untraced` the model and the caller's random streams are as if nothing had run."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from maxup.checks import is_capturing, leaves
from maxup.perturb.draws import Batch

RECORDED = ("running_mean", "running_var", "num_batches_tracked")


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
    norms = [(m, m.track_running_stats) for m in modules if isinstance(m, _BatchNorm) and m.training]
    buffers = [(module._buffers, dict(module._buffers)) for module in modules]
    copies = [  # BatchNorm's own statistics need none: it is told not to record
        (buffer, buffer._version, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and not (isinstance(module, _BatchNorm) and name in RECORDED)
    ]
    devices = {p.device for module in modules for p in module._parameters.values() if p is not None} | {device}
    if is_capturing(device):
        _refuse_dropout(modules)
        devices = {d for d in devices if d.type != "cuda"}  # whose stream a graph registers and advances by itself
    rewind = remember_random(devices)
    for layer, _ in norms:
        _silence(layer, norm)
    try:
        yield rewind
    finally:
        for layer, tracking in norms:
            layer.track_running_stats = tracking
        for holder, before in buffers:
            holder.clear()
            holder.update(before)
        for buffer, version, copy in copies:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
        for module, training in flags:
            if module.training != training:
                module.training = training
        rewind()
        torch.clear_autocast_cache()


@contextmanager
def evaluating(model: Any, batch: Batch) -> Iterator[None]:
    """Forward passes in evaluation mode that leave no trace; what is no module is called as it is."""
    if not isinstance(model, nn.Module):
        yield
        return
    with untraced(model, batch, norm="running"):
        model.eval()
        yield


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


def _silence(layer: _BatchNorm, norm: str) -> None:
    """Make a BatchNorm layer in training stop recording."""
    if norm == "running":
        layer.training = False
    elif isinstance(layer, nn.SyncBatchNorm):
        # Out of training it does not wait for the other processes; without buffers it uses its own batch's statistics.
        layer.training = False
        layer._buffers.update(running_mean=None, running_var=None)
    else:
        layer.track_running_stats = False


def _refuse_dropout(modules: list[nn.Module]) -> None:
    for module in modules:
        if module.training and drop_probability(module) > 0:
            raise RuntimeError(
                f"a CUDA graph cannot rewind the random stream, so copies would not share the masks of this "
                f"{type(module).__name__}; select outside the graph, or train without dropout"
            )


def drop_probability(module: nn.Module) -> float:
    """How likely a layer of torch's own, or of timm's, drops something in training."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout
    theirs = [getattr(module, name, 0.0) for name in ("drop_rate", "drop_prob")]  # Dropout, DropPath and DropBlock
    return max((float(rate) for rate in theirs if isinstance(rate, int | float)), default=0.0)

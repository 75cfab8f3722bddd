"""Run forward passes without side effects: `preserve_state` restores the model and the global random states."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from maxup.batch import Batch, device_of, leaves
from maxup.dropout import refuse_dropout
from maxup.rng import get_rng_state, remember_rng
from maxup.validate import is_capturing

RECORDED = {"running_mean", "running_var", "num_batches_tracked"}
PLAIN = (bool, int, float, str, type(None), Tensor)  # attributes that are restored
KEPT = {"training", "_compiled_call_impl"}  # restored otherwise, or not changed by a forward pass
TORCH_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)  # obey track_running_stats


@contextmanager
def preserve_state(
    model: nn.Module, batch: Batch, *, norm: str = "batch", others: Sequence[nn.Module] = ()
) -> Iterator[Callable[[], None]]:
    """Restore the state that forward passes change, whether they succeed or raise.

    Restored by value: all buffers, plain attributes of modules with buffers (a cache may consist of both), the training
    flags, and the random states of torch (on the CPU and on the model's devices), Python and numpy. Torch's BatchNorm
    layers do not update their statistics at all, which costs nothing. The autocast cache and the weights cached by
    `parametrize.cached()` are dropped, because they were computed without a graph and the training pass would lose
    gradients. Disable gradients yourself (`torch.no_grad`).

    Args:
        model: The model to be called.
        batch: What it is called with, for the device.
        norm: Statistics that train-mode BatchNorm uses: "batch" or "running".
        others: Other modules that the passes call, such as a loss with buffers.

    Yields:
        A function to call before each pass. It restores the random states and buffers, so that every pass sees the same
        dropout masks and the same state.
    """
    device = next(leaf.device for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    modules = list(model.modules())
    if lazy := next(filter(_is_uninitialized, modules), None):
        kind = type(lazy).__name__
        raise ValueError(f"the model has an uninitialized {kind}; call model(x) once before the first step")
    if others:  # a function may hold uninitialized modules that it does not call
        more = (m for root in others for m in root.modules() if not _is_uninitialized(m))
        modules = list(dict.fromkeys([*modules, *more]))
    flags = [(module, module.training) for module in modules]
    norms = [(m, m.track_running_stats) for m in modules if isinstance(m, _BatchNorm) and m.training]
    before = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
    silent = {module for module in modules if _can_silence(module)}  # BatchNorm without updates needs no copy
    watched = [m for m in modules if m._buffers and not (m in silent and RECORDED.issuperset(m._buffers))]
    devices = {p.device for module in modules for p in module._parameters.values() if p is not None} | {device}
    if is_capturing(device):
        refuse_dropout(model)
        devices = {d for d in devices if d.type != "cuda"}  # a graph advances that random state itself
    restore_rng = remember_rng(devices)
    for layer, _ in norms:
        _silence(layer, norm)
    between = [(module._buffers, dict(module._buffers)) for module in watched]
    attributes = [(vars(module), _plain(vars(module))) for module in watched]
    restore_values = remember_values(
        buffer
        for module in watched
        for name, buffer in module._buffers.items()
        if buffer is not None and not (module in silent and name in RECORDED)
    )

    def rewind() -> None:
        restore_rng()
        _set_buffers(between)
        _set_attributes(attributes)
        restore_values()

    cache = parametrize._cache
    parametrize._cache = dict(cache)
    try:
        yield rewind
    finally:
        parametrize._cache = cache
        _set_attributes(attributes)
        for layer, tracking in norms:
            layer.track_running_stats = tracking
        _set_buffers(before)
        for module, training in flags:
            if module.training != training:
                module.training = training
        restore_rng()
        torch.clear_autocast_cache()
        restore_values()  # the last, because it raises inside a capture that failed


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Call `model.eval()`, and restore the mode of every module afterwards. Do nothing if the model is not a module.

    Modes change through the modules' `train` methods, because some do more than set a flag: LoRA layers merge their
    weights, and timm's LeViT caches its attention biases.
    """
    flags = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    if flags:
        model.eval()
    try:
        yield
    finally:
        for module, training in flags:  # parents before children
            if module.training != training:
                module.train(training)
        for module, training in flags:
            module.training = training


@contextmanager
def isolated_eval(model: Any, batch: Batch, others: Sequence[nn.Module] = ()) -> Iterator[Callable[[], None]]:
    """`preserve_state` with the model and the other modules in evaluation mode.

    A model that is not a module is called as it is.
    """
    if not isinstance(model, nn.Module):
        yield lambda: None
        return
    with ExitStack() as stack:
        for module in (model, *others):
            stack.enter_context(eval_mode(module))
        yield stack.enter_context(preserve_state(model, batch, others=others))


def remember_values(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Remember the values of tensors, and return a function that restores them.

    It copies once per device and dtype, and writes through `.data`, so that a graph that saved one of the tensors can
    still be backpropagated: its values are the saved ones again.

    Example:
        >>> counter = torch.zeros(3)
        >>> restore = remember_values([counter])
        >>> counter.data += 1
        >>> restore()
        >>> counter
        tensor([0., 0., 0.])
    """
    memory = [(tensor, tensor.data) for tensor in {id(tensor): tensor for tensor in tensors}.values()]
    groups: dict[Any, list[Tensor]] = {}
    for _, data in memory:
        # DTensors cannot be copied as a group.
        alone = id(data) if type(data) not in (Tensor, nn.Parameter, nn.Buffer) else None
        groups.setdefault((data.device, data.dtype, data.layout, alone), []).append(_dense(data))
    kept = [(group, [torch.empty_like(tensor) for tensor in group]) for group in groups.values()]
    for group, values in kept:
        _copy(values, group)

    def restore() -> None:
        if not memory:
            return
        for tensor, data in memory:
            if data.layout == torch.strided and tensor.data_ptr() != data.data_ptr():
                tensor.data = data  # a pass assigned to .data
        with torch.inference_mode():  # buffers made in inference mode can only be written there
            for group, values in kept:
                _copy(group, values)

    return restore


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    if len(to) == 1:
        to[0].copy_(values[0])
    else:
        torch._foreach_copy_(to, values)


def autocast(batch: Batch, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return an autocast context for this dtype; None leaves the precision as it is."""
    if dtype is None:
        return nullcontext()
    return torch.autocast(device_of(batch).type, dtype, enabled=dtype != torch.float32)


@contextmanager
def forbid_side_effects(batch: Batch, who: str) -> Iterator[None]:
    """Raise if the code inside, `who`, draws from a global random state or changes the batch in place."""
    devices = {leaf.device for leaf in leaves(batch) if not is_capturing(leaf.device)}
    tracked = [leaf for leaf in leaves(batch) if not leaf.is_inference()]  # the others cannot be changed outside it
    before, versions = get_rng_state(devices), [leaf._version for leaf in tracked]
    rewind = remember_rng(devices)
    yield
    if before != get_rng_state(devices):
        rewind()
        raise ValueError(
            f"{who} drew from a global random state, which is restored before every copy, so all copies would be the "
            "same; draw from the generator passed to draw(batch, generator), or wrap a transform in Transform(...)"
        )
    if versions != [leaf._version for leaf in tracked]:
        raise ValueError(f"{who} changed the batch in place; return new tensors instead")


def _can_silence(module: nn.Module) -> bool:
    """Whether updates of a module's statistics can be switched off: BatchNorm with torch's forward and no hooks."""
    return (
        isinstance(module, _BatchNorm)
        and type(module).forward in TORCH_FORWARDS
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
    )


def _silence(layer: _BatchNorm, norm: str) -> None:
    """Make a train-mode BatchNorm layer use these statistics, and stop updating them if it can."""
    if norm == "running":
        layer.training = False
    elif not _can_silence(layer):
        return  # its buffers are restored by value
    elif isinstance(layer, nn.SyncBatchNorm):
        # Evaluation mode avoids communication, and without running buffers the layer uses batch statistics.
        layer.training = False
        layer._buffers.update(running_mean=None, running_var=None)
    else:
        layer.track_running_stats = False


def _set_buffers(saved: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]) -> None:
    """Make each module's buffers the saved objects again."""
    for buffers, before in saved:
        if isinstance(buffers, dict):  # TorchScript buffers cannot be replaced
            buffers.clear()
            buffers.update(before)


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a module that a forward pass may use as a cache, with the buffers."""
    return {name: value for name, value in attributes.items() if isinstance(value, PLAIN) and name not in KEPT}


def _set_attributes(saved: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Make the plain attributes of modules the saved ones again."""
    for attributes, before in saved:
        for name in _plain(attributes).keys() - before.keys():
            del attributes[name]
        attributes.update(before)


def _dense(tensor: Tensor) -> Tensor:
    """Return the part of an expanded tensor that has its own memory, so that it can be written to."""
    for dim, stride in enumerate(tensor.stride() if tensor.layout == torch.strided else ()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_uninitialized(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()

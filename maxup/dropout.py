"""Dropout of a model: which layers apply it, and how to turn it off while copies are scored."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

ATTENTION_OR_RNN = (nn.MultiheadAttention, nn.RNNBase)


@contextmanager
def without_dropout(model: nn.Module, *others: nn.Module) -> Iterator[None]:
    """Turn dropout inside modules off: modules that apply it are in evaluation mode.

    The given modules themselves stay in training mode, because they may return something else in evaluation mode. The
    exceptions are torch's dropout, recurrent and attention layers, layers without weights that only drop, and modules
    inside another given one.

    A recurrent layer has its dropout set to 0 instead, because cuDNN computes no gradients in evaluation mode.
    """
    bodies = [getattr(root, "_orig_mod", root) for root in (model, *others)]  # of compiled modules
    modules = dict.fromkeys(m for body in bodies for m in body.modules())
    inside = {m for body in bodies for m in body.modules() if m is not body} - {bodies[0]}
    roots = {body for body in bodies if body not in inside and not _only_drops(body)}
    active = [m for m in modules if m.training and m not in roots and has_dropout(m)]
    recurrent = {m: m.dropout for m in active if isinstance(m, nn.RNNBase)}
    for module in active:
        if module in recurrent:
            module.dropout = 0.0
        else:
            module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True
        for layer, dropout in recurrent.items():
            layer.dropout = dropout


def _only_drops(module: nn.Module) -> bool:
    """Whether evaluation mode only turns the dropout of a module off."""
    if isinstance(module, nn.modules.dropout._DropoutNd | nn.RNNBase | nn.MultiheadAttention):
        return True
    return drop_probability(module) > 0 and not any(True for _ in (*module.children(), *module.parameters()))


def refuse_dropout(model: nn.Module) -> None:
    """Raise if the model has active dropout, for the capture of a CUDA graph."""
    for module in model.modules():
        if module.training and drop_probability(module) > 0:
            raise RuntimeError(
                f"a CUDA graph cannot restore the random state, so copies would not share the masks of this "
                f"{type(module).__name__}; select outside the graph, or train without dropout"
            )


def has_dropout(module: nn.Module) -> bool:
    """Whether a module applies dropout itself: a dropout layer, or a module with a drop probability as an attribute.

    Attention modules that contain a dropout layer pass its probability to a fused function, so they count, too. Other
    modules that contain one do not: in evaluation they may return something else.

    Example:
        >>> [has_dropout(layer) for layer in (nn.Dropout(0.1), nn.Dropout(0.0), nn.MultiheadAttention(8, 2, 0.1))]
        [True, False, True]
    """
    rates = [rate for name, rate in vars(module).items() if "drop" in name and type(rate) in (int, float)]
    if "attention" in type(module).__name__.lower():
        rates += map(drop_probability, module.children())
    return any(0 < rate <= 1 for rate in (drop_probability(module), *rates))


def drop_probability(module: nn.Module) -> float:
    """Return the drop probability of a layer from torch, torchvision or timm in training; 0 for other layers."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    if isinstance(module, ATTENTION_OR_RNN):
        return module.dropout
    kind, attributes = type(module), vars(module)
    names = ["drop_rate", "drop_prob"]  # timm's Dropout, DropPath, DropBlock
    if kind.__name__ in ("StochasticDepth", "PatchDropout"):  # of torchvision and timm
        names += ["p", "prob"]
    if kind.__getattr__ is nn.Module.__getattr__:  # slow for attributes that do not exist
        names = [name for name in names if name in attributes or hasattr(kind, name)]
    rates = [getattr(module, name, 0.0) for name in names]
    return max([float(rate) for rate in rates if isinstance(rate, int | float)], default=0.0)

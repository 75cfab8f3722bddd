"""Forward passes over several copies at once. The copies share the model's random numbers, such as dropout masks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from maxup.batch import Batch, Draw, batch_size, leaves
from maxup.dropout import drop_probability
from maxup.errors import CannotShareError
from maxup.objectives.base import unwrap
from maxup.objectives.sanity import warn_if_losses_change
from maxup.objectives.shared_masks import Recorded, RecordRandomOps, shared_masks
from maxup.rng import get_rng_state

MAX_KEYS = 256  # number of single-copy passes to remember, per model


@dataclass
class OneCopy:
    """What a pass over one copy drew, and its losses."""

    operations: Recorded
    """Torch's random operations."""
    moved: set[str]
    """Names of the global random states that it advanced."""
    after: dict[str, Any] | None
    """The random states afterwards; None once a wide pass has been compared with them."""
    losses: Tensor
    """Losses of the copy, (B,)."""


class WidePasses:
    """Passes over several copies that share what a pass over one copy draws.

    Before the first wide pass for each `_cache_key`, one copy runs alone. If it draws no random numbers, wide passes
    run without interception, and compiled models stay compiled.

    Args:
        instead: What to do if random numbers cannot be shared, for error messages.
    """

    def __init__(self, instead: str) -> None:
        self.instead = instead
        self.known: WeakKeyDictionary[nn.Module, dict[Any, OneCopy]] = WeakKeyDictionary()

    def __reduce__(self) -> Any:
        return WidePasses, (self.instead,)  # the rest is recomputed on demand

    def run(
        self,
        forward: Callable[[Any, Batch, list[Draw]], tuple[Any, Any, Tensor]],
        model: Any,
        batch: Batch,
        draws: list[Draw],
        *,
        isolated: AbstractContextManager[Callable[[], None]],
        rewind: Callable[[], None] | None = None,
        others: Sequence[nn.Module] = (),
    ) -> tuple[Any, Any, Tensor]:
        """Forward all copies in one pass.

        Args:
            forward: `forward(model, batch, draws) -> (output, target, losses)`, (k * B, ...) each.
            model: The model, wrapped in DistributedDataParallel or not.
            batch: The batch (x, y).
            draws: One draw per copy, a list of k.
            isolated: Under which one copy can run without side effects; yields a function that rewinds the state.
            rewind: Goes back to the state before the wide pass. With it, one copy runs again if the model draws other
                numbers than in an earlier step, as with LayerDrop.
            others: Other modules that `forward` calls.

        Returns:
            What `forward` returns.
        """
        module = unwrap(model)
        modules = [part for root in (module, *others) for part in root.modules()]
        devices = list({p.device for part in modules for p in part._parameters.values() if p is not None}
                       | {leaf.device for leaf in leaves(batch)})  # fmt: skip
        known, key = self.known.setdefault(module, {}), _cache_key(modules, batch)
        is_new = key not in known
        if is_new:
            with isolated as rewind_one, torch.no_grad():
                one = self._run_one(module, lambda: forward(module, batch, draws[:1])[2], rewind_one, devices)
            if len(known) == MAX_KEYS:
                del known[next(iter(known))]
            known[key] = one
        if rewind is not None:
            rewind()
        try:
            result = self._run_wide(known[key], devices, lambda: forward(model, batch, draws), draws, batch)
        except BaseException as error:
            del known[key]  # run one copy again before the next wide pass
            if is_new or rewind is None or not isinstance(error, CannotShareError):
                raise
        else:
            if known[key].moved & {"Python", "numpy"}:  # their numbers are compared with those of one copy every time
                del known[key]
            return result
        return self.run(forward, model, batch, draws, isolated=isolated, rewind=rewind, others=others)

    def _run_one(
        self, model: nn.Module, forward: Callable[[], Tensor], rewind: Callable[[], None], devices: list[torch.device]
    ) -> OneCopy:
        """Run one copy, twice if it draws random numbers, and return what it drew."""
        rewind()
        before = get_rng_state(devices)
        losses = forward()
        after = get_rng_state(devices)
        moved = {name for name in after if after[name] != before[name]}
        operations: Recorded = []
        if moved - {"Python", "numpy"}:
            if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules()):
                raise CannotShareError(
                    f"a compiled model draws random numbers, which copies cannot share; {self.instead}"
                )
            rewind()
            with RecordRandomOps() as recorded:
                forward()
            operations = recorded.operations
        return OneCopy(operations, moved, after, losses.detach())

    def _run_wide(
        self, one: OneCopy, devices: list[torch.device], forward: Callable[[], Any], draws: list[Draw], batch: Batch
    ) -> Any:
        copies, size = len(draws), batch_size(batch)
        before = get_rng_state(devices)
        with shared_masks(one.operations, copies, size, self.instead):
            result = forward()
        after = get_rng_state(devices)
        shared = one.moved == {name for name in after if after[name] != before[name]}
        if not shared or (one.after is not None and one.after != after):
            why = "the copies cannot share" if one.after is not None else "it did not draw for a single copy"
            raise CannotShareError(
                f"the model drew random numbers in a pass over {copies} copies that {why}; {self.instead}"
            )
        if one.after is not None:
            one.after = None
            losses = result[-1].detach().view(copies, size)
            warn_if_losses_change(one.losses, losses[0], losses, "a copy alone", "together with other copies")
        return result


def _cache_key(modules: list[nn.Module], batch: Batch) -> Any:
    """Return a cache key: the modes and shapes that determine which random numbers a pass draws."""
    modes = tuple((module.training, drop_probability(module) > 0) for module in modules)
    return modes, tuple(leaf.shape for leaf in leaves(batch))

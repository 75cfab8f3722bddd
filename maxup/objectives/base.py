"""What every objective shares: `objective(model, x, y) -> loss`, its random stream, its outcome."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.batch import Batch, Draw, batch_size, cat, leaves, tile
from maxup.call_repr import call_repr
from maxup.isolation import called_modules, forbid_side_effects, preserve_state
from maxup.losses import TOKENS, cross_entropy, mean_loss
from maxup.objectives.outcome import Outcome
from maxup.perturb.in_model import clear, in_model_parts
from maxup.rng import objective_seed
from maxup.snapshot import Snapshot, changed, state
from maxup.validate import (
    check_batch,
    check_classification,
    check_copy,
    check_losses,
    check_model,
    check_perturbation,
    check_tokens,
    check_values,
    check_whole,
    explain_call,
    is_capturing,
    warn,
)

LossFn = Callable[[Any, Any], Tensor]
Forward = Callable[[Any, Any], Any]


def call(model: Any, x: Any) -> Any:
    """The default `forward`: model(x)."""
    try:
        return model(x)
    except Exception as error:
        if (sentence := explain_call(x, error)) is not None:
            raise TypeError(sentence) from error
        raise


class Objective:
    """Base of the objectives. Subclasses write `run(model, x, y) -> Outcome`; calling one gives the loss.

    Args:
        perturbation: P(.|x), for the objectives that draw copies.
        m: Copies of every example, or a function of the step that says how many.
        loss_fn: `loss_fn(output, target) -> (B,)`, one number for every example.
        forward: How the model is called, `forward(model, x) -> output`.
        generator: Where randomness comes from. None makes one on the batch's device at the first call, seeded by
            `torch.manual_seed`, the process's rank and which of the living objectives this is; it takes nothing from
            the global stream.
    """

    def __init__(
        self,
        perturbation: Any = None,
        m: int | Callable[[int], int] = 1,
        *,
        loss_fn: LossFn = cross_entropy,
        forward: Forward = call,
        generator: Generator | None = None,
    ) -> None:
        self.perturbation: Any = None if perturbation is None else check_perturbation(perturbation)
        self.m = m if callable(m) else check_whole("m", m)
        if not isinstance(generator, Generator | None):
            raise TypeError(f"generator={generator!r}: pass a torch.Generator, or None")
        for name, function in (("loss_fn", loss_fn), ("forward", forward)):
            if not callable(function):
                raise TypeError(f"{name}={function!r:.60}: {name} must be a function")
        self.loss_fn, self.forward, self.generator = loss_fn, forward, generator
        self.step = 0
        self._first, self._look, self._own = True, False, False  # _own: the generator was made here
        self._unscored = True  # whether no passes without a trace have run yet
        self._called: tuple[Any, Any, list[nn.Module]] = (None, None, [])  # the modules that loss and forward call

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """The loss with everything known about it."""
        raise NotImplementedError(f"{type(self).__name__} must define run(model, x, y)")

    def __call__(self, model: Any, x: Any, y: Any) -> Tensor:
        """The loss."""
        return self.run(model, x, y).loss

    def __repr__(self) -> str:
        return call_repr(self, hide={"generator"} if self._own else ())

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the step, and the generator's state if one exists already."""
        generator = None if self.generator is None else self.generator.get_state()
        device = None if self.generator is None else str(self.generator.device)
        return {"step": self.step, "generator": generator, "device": device}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, on the same kind of device.

        A state from before the first draw has no generator: then one that was made here is made anew, and one that was
        given stays as it is.
        """
        if not {"step", "generator", "device"} <= set(state):
            raise ValueError(f"this is no state of an objective: it has the keys {sorted(state)}")
        self.step = int(state["step"])
        if state["generator"] is None:
            self.generator = None if self._own else self.generator
        else:
            if self.generator is None or self.generator.device != torch.device(state["device"]):
                self.generator = Generator(state["device"])
            self.generator.set_state(state["generator"].cpu())

    @contextmanager
    def _step(self, x: Any, y: Any) -> Iterator[tuple[Batch, Generator]]:
        """One step: a checked batch and the generator of its device; if something goes wrong, nothing has changed."""
        x, y = (dict(part) if isinstance(part, Mapping) else part for part in (x, y))  # Hugging Face's BatchEncoding
        batch = x, y
        check_batch(batch)
        device = leaves(batch)[0].device
        capturing = is_capturing(device)
        generator = self._generator(device)
        # Reading values makes a GPU wait: there, look at the first batch only.
        self._look = device.type == "cpu" or (self._first and not capturing)
        if self._look:
            check_values(x)
        before = None if capturing else generator.get_state()
        try:
            yield batch, generator
        except BaseException:
            if before is not None:
                generator.set_state(before)
            raise
        finally:
            clear(self.perturbation)
        self._first = False
        self.step += 1

    def _generator(self, device: torch.device) -> Generator:
        if self.generator is None:
            self.generator, self._own = Generator(device).manual_seed(objective_seed(self)), True
        if self.generator.device.type != device.type:
            do = f"make it with torch.Generator({device.type!r}), or leave generator=None"
            if self._own:
                do = "it was made on the device of the first batch: make a new objective for another"
            raise ValueError(f"the generator is on {self.generator.device} but the batch on {device}; {do}")
        return self.generator

    def copies(self) -> int:
        """m at this step."""
        return check_whole("m", self.m(self.step)) if callable(self.m) else self.m

    def depends_on(self) -> Any:
        """What a step depends on besides the batch and its draws: a captured step is captured anew when it changes."""
        return self.copies()

    def _draws(self, batch: Batch, generator: Generator, copies: int) -> list[Draw]:
        """x'_i ~ P(.|x) of every example, `copies` times."""
        with self._watched(batch, "draw"):
            return [self.perturbation.draw(batch, generator) for _ in range(copies)]

    def _copy(self, batch: Batch, draw: Draw, copies: int = 1) -> Batch:
        """x' and y', checked: (copies * B, ...) each."""
        tiled = tile(batch, copies)
        with self._watched(tiled, "apply"):
            copy = self.perturbation.apply(tiled, draw)
        check_copy(copy, copies * batch_size(batch))
        return copy

    def _watched(self, batch: Batch, method: str) -> AbstractContextManager[None]:
        """On the first batch, watch that a perturbation leaves the global streams and the batch alone."""
        return (
            forbid_side_effects(batch, f"{type(self.perturbation).__name__}.{method}") if self._first else nullcontext()
        )

    @contextmanager
    def _preserve_state(self, model: nn.Module, batch: Batch, norm: str) -> Iterator[Callable[[], None]]:
        """`preserve_state` for the model and the modules that `loss_fn` and `forward` call, checked once."""
        if self._called[:2] != (self.loss_fn, self.forward):
            self._called = self.loss_fn, self.forward, called_modules(self.loss_fn, self.forward)
        modules = [model, *self._called[2]]
        first = self._unscored and not is_capturing(leaves(batch)[0].device)
        watch = first and all(type(p) is nn.Parameter for module in modules for p in module.parameters())  # not FSDP's
        seen: list[Snapshot] = []  # after the first pass, whose caches may stay, and after the last

        def rewind() -> None:
            rewind_all()
            if watch and len(seen) < 2:
                seen.append(state(modules) if seen else {})  # the first call is before the first pass

        hooks = [hook for part in in_model_parts(self.perturbation) for hook in part.hooks]
        for hook in hooks:
            hook.scoring = True
        try:
            with preserve_state(model, batch, norm=norm, others=modules[1:]) as rewind_all:
                yield rewind
                if len(seen) == 2:
                    rewind_all()
                    seen.append(state(modules))
        finally:
            for hook in hooks:
                hook.scoring = False
        self._unscored = self._unscored and not first
        if len(seen) == 3:
            left = changed(seen[1], seen[2])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            if left:
                warn(
                    f"{type(self).__name__} runs the model several times per step, and its forward pass changed "
                    f"{', '.join(left[:3])}{more}, which cannot be restored; keep such state in a registered buffer, "
                    "or update it outside of forward"
                )

    def _forward(self, model: Any, batch: Batch, draws: list[Draw]) -> tuple[Any, Any, Tensor]:
        """L(x'_i, theta) of k copies in one pass: output, target and losses, each (k * B, ...)."""
        x, target = self._copy(batch, cat(draws), len(draws))
        output = self.forward(model, x)
        return output, target, self._losses(output, target, len(draws) * batch_size(batch))

    def _losses(self, output: Any, target: Any, wanted: int) -> Tensor:
        """The loss of every example, checked: (B,)."""
        if self.loss_fn is cross_entropy:
            check_classification(output, target, self._look)
        elif self.loss_fn in TOKENS:
            check_tokens(output, target, self._look)
        losses = self.loss_fn(output, target)
        check_losses(losses, wanted)
        self._look = False
        return losses

    def _mean(self, losses: Tensor, target: Any) -> Tensor:
        """The loss to back-propagate, as F.cross_entropy averages: over all positions that are not ignored."""
        return mean_loss(self.loss_fn, losses, target)


def bare(model: Any) -> Any:
    """The model inside DistributedDataParallel, for passes that need no gradient and no other process."""
    check_model(model)
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model

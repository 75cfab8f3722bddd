"""What all objectives share: `objective(model, x, y) -> loss`, the random draws, checks and state."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Generator, Tensor, nn

from maxup.attention import attention_as_in_training
from maxup.batch import Batch, Draw, batch_size, cat, device_of, tile
from maxup.call_repr import call_repr
from maxup.called_modules import called_modules
from maxup.dropout import without_dropout
from maxup.errors import CannotShareError
from maxup.isolation import forbid_side_effects, preserve_state
from maxup.losses import TOKENS, cross_entropy, mean_loss, without_arguments
from maxup.objectives.outcome import Outcome
from maxup.objectives.settings import settings
from maxup.perturb.base import remember_draws
from maxup.perturb.in_model import clear, in_model_parts
from maxup.rng import objective_seed, reserve_seed, step_seed
from maxup.snapshot import changed, state
from maxup.validate import (
    can_read_without_sync,
    check_batch,
    check_classification,
    check_copy,
    check_gradient,
    check_losses,
    check_model,
    check_perturbation,
    check_positive_int,
    check_tokens,
    check_values,
    explain_call,
    is_capturing,
    warn,
)

LossFn = Callable[[Any, Any], Tensor]
Forward = Callable[[Any, Any], Any]


def call_model(model: Any, x: Any) -> Any:
    """Return model(x): the default `forward`."""
    try:
        return model(x)
    except CannotShareError:
        raise
    except Exception as error:
        if (message := explain_call(x, error)) is not None:
            raise TypeError(message) from error
        raise


class Objective:
    """Base class of the objectives. Subclasses define `run(model, x, y) -> Outcome`; calling one returns the loss.

    Args:
        perturbation: P(.|x), for objectives that draw copies.
        m: Copies per example, or a function of the step that returns it.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.
        forward: How to call the model, `forward(model, x) -> output`.
        generator: Source of randomness. None creates one on the batch's device in the first call, and seeds it at every
            step from (seed, rank, step), so that a resumed run draws what it would have drawn. The seed depends on
            `torch.manual_seed` and the other live objectives. The global random state does not advance. A generator
            that you pass is a running stream: it is never seeded, and `state_dict` holds its state.
    """

    def __init__(
        self,
        perturbation: Any = None,
        m: int | Callable[[int], int] = 1,
        *,
        loss_fn: LossFn = cross_entropy,
        forward: Forward = call_model,
        generator: Generator | None = None,
    ) -> None:
        self.perturbation: Any = None if perturbation is None else check_perturbation(perturbation)
        self.m = m if callable(m) else check_positive_int("m", m)
        if not isinstance(generator, Generator | None):
            raise TypeError(f"generator={generator!r}: pass a torch.Generator, or None")
        for name, function in (("loss_fn", loss_fn), ("forward", forward)):
            if not callable(function):
                raise TypeError(f"{name}={function!r:.60}: {name} must be a function")
        self.loss_fn, self.forward, self.generator = loss_fn, forward, generator
        self.step = 0
        self._created: Generator | None = None  # the default generator, if the first step created it
        self._seed: int | None = None  # of the default generator
        self._first_batch = True
        self._first_scoring = True  # True until the first scoring
        self._read_values = False  # True if this batch's values are checked
        self._found: list[nn.Module] | None = None  # what `loss_fn` and `forward` may call in this step

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """Return the loss with outputs, targets and losses per example."""
        raise NotImplementedError(f"{type(self).__name__} must define run(model, x, y)")

    def __call__(self, model: Any, x: Any, y: Any) -> Tensor:
        """Return the loss."""
        return self.run(model, x, y).loss

    def __repr__(self) -> str:
        return call_repr(self, hide={"generator"} if self.generator is self._created else ())

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: the seed and the step, which are the same on every rank.

        If you passed a generator, its state takes the place of the seed. It differs between ranks, so every rank must
        save its own.
        """
        if self.generator is None or self.generator is self._created:
            return {"seed": self._seed, "step": self.step}
        return {"step": self.step, "generator": self.generator.get_state(), "device": str(self.generator.device)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict()`. The following draws are those of this process's rank.

        A state saved before the first step has no seed. In that case the default generator is created again; a
        generator that you passed is unchanged. A state that holds a generator needs the same type of device.
        """
        if {"seed", "step"} <= set(state):
            self._load_seed(state["seed"])
        elif {"step", "generator", "device"} <= set(state):
            self._load_generator(state["generator"], state["device"])
        else:
            raise ValueError(f"this is not the state_dict of an objective: it has the keys {sorted(state)}")
        self.step = int(state["step"])

    def _load_seed(self, seed: int | None) -> None:
        if self.generator is self._created:
            self._seed = None if seed is None else reserve_seed(self, int(seed))
            if seed is None:
                self.generator = self._created = None
        elif seed is not None:
            raise ValueError(
                "this state was saved without generator=, but this objective has one; load the state into an objective "
                "without generator="
            )

    def _load_generator(self, generator_state: Tensor | None, device: str) -> None:
        if generator_state is None:  # saved by version 0.1 before the first step
            return self._load_seed(None)
        if self.generator is self._created or self.generator is None or self.generator.device != torch.device(device):
            self.generator = Generator(device)
        self.generator.set_state(generator_state.cpu())

    def seed_step(self) -> None:
        """Seed the default generator for this step. Does nothing if you passed a generator.

        Every step calls it. Call it yourself only before you replay a CUDA graph that contains a step.
        """
        if self._seed is not None and self.generator is not None and self.generator is self._created:
            self.generator.manual_seed(step_seed(self._seed, self.step))

    def copies(self) -> int:
        """Return m at this step."""
        return check_positive_int("m", self.m(self.step)) if callable(self.m) else self.m

    def depends_on(self) -> Any:
        """Return what a step depends on besides batch and draws. A CUDA graph is captured again when it changes."""
        return self.copies(), settings(self)

    def needs_eager(self) -> bool:
        """Whether this step must not be replayed from a CUDA graph."""
        return False

    @contextmanager
    def _step(self, x: Any, y: Any) -> Iterator[tuple[Batch, Generator]]:
        """Run one step: yield the checked batch and the generator. If the step fails, nothing has changed."""
        x, y = (dict(part) if isinstance(part, Mapping) else part for part in (x, y))  # Hugging Face's BatchEncoding
        batch = x, y
        check_batch(batch)
        device = device_of(batch)
        capturing = is_capturing(device)
        generator = self._generator(device)
        # Reading values synchronizes a GPU, so there only the first batch is checked.
        self._read_values = can_read_without_sync(device) or (self._first_batch and not capturing)
        if self._read_values:
            check_values(x)
        rewind = None if capturing else remember_draws(self.perturbation, generator)
        if not capturing:  # a captured step is seeded before its replay
            self.seed_step()
        try:
            yield batch, generator
        except BaseException:
            if rewind is not None:
                rewind()
            raise
        finally:
            self._found = None
            clear(self.perturbation)
        self._first_batch = False
        self.step += 1

    def _generator(self, device: torch.device) -> Generator:
        if self.generator is None:
            self.generator = self._created = Generator(device)
            self._seed = objective_seed(self) if self._seed is None else self._seed
        if self.generator.device.type != device.type:
            do = f"create it with torch.Generator({device.type!r}), or pass generator=None"
            if self.generator is self._created:
                do = "it was created on the device of the first batch, so create a new objective for another device"
            raise ValueError(f"the generator is on {self.generator.device}, but the batch is on {device}; {do}")
        return self.generator

    def _draws(self, batch: Batch, generator: Generator, copies: int) -> list[Draw]:
        """Draw x'_i ~ P(.|x) for every example, `copies` times."""
        with self._forbid_side_effects(batch, "draw"):
            return [self.perturbation.draw(batch, generator) for _ in range(copies)]

    def _copy(self, batch: Batch, draw: Draw, copies: int = 1) -> Batch:
        """Return x' and y', checked: (copies * B, ...) each."""
        tiled = tile(batch, copies)
        with self._forbid_side_effects(tiled, "apply"):
            copy = self.perturbation.apply(tiled, draw)
        check_copy(copy, copies * batch_size(batch))
        if torch.is_grad_enabled():
            check_gradient(batch, copy, self.perturbation)
        return copy

    def _other_modules(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules outside of the model that `loss_fn` and `forward` may call in this step.

        Those found in earlier steps stay: a search of what holds them may take too long later.
        """
        if self._found is None:
            known = _called.setdefault(self, WeakSet())
            known.update(found := called_modules(self.loss_fn, self.forward))
            self._found = list(dict.fromkeys([*found, *known]))
        inside = set(model.modules()) if self._found else ()
        return [module for module in self._found if module not in inside]

    def _forbid_side_effects(self, batch: Batch, method: str) -> AbstractContextManager[None]:
        """On the first batch, raise if the perturbation changes the global random state or the batch."""
        who = f"{type(self.perturbation).__name__}.{method}"
        return forbid_side_effects(batch, who) if self._first_batch else nullcontext()

    @contextmanager
    def _preserve_state(
        self, model: nn.Module, batch: Batch, norm: str, *, dropout: bool = True, check: bool = True
    ) -> Iterator[Callable[[], None]]:
        """`preserve_state` for the model and the modules that `loss_fn` and `forward` call.

        The first time, unless `check` is False, warn about state that changed and cannot be restored.
        """
        modules = [model, *self._other_modules(model)]
        first = check and self._first_scoring and not is_capturing(device_of(batch))
        compare = first and all(type(p) is nn.Parameter for module in modules for p in module.parameters())  # not FSDP
        passes, after_first, after_last = 0, None, None

        def rewind() -> None:
            nonlocal passes, after_first
            rewind_all()
            if compare and passes == 1:
                after_first = state(modules)  # the first pass may fill caches
            passes += 1

        hooks = [hook for part in in_model_parts(self.perturbation) for hook in part.hooks]
        for hook in hooks:
            hook.scoring = True
        try:
            with (
                attention_as_in_training(*modules),
                nullcontext() if dropout else without_dropout(*modules),
                preserve_state(model, batch, norm=norm, others=modules[1:]) as rewind_all,
            ):
                yield rewind
                if after_first is not None:
                    rewind_all()
                    after_last = state(modules)
        finally:
            for hook in hooks:
                hook.scoring = False
        self._first_scoring = self._first_scoring and not first
        if after_first is not None and after_last is not None and (names := changed(after_first, after_last)):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warn(
                f"{type(self).__name__} runs the model several times per step, but the forward pass changed "
                f"{', '.join(names[:3])}{more}, which cannot be restored; keep such state in a registered buffer, or "
                "update it outside of forward"
            )

    def _forward(
        self, model: Any, batch: Batch, draws: list[Draw], prepare: Callable[[Any], Any] = lambda x: x
    ) -> tuple[Any, Any, Tensor]:
        """Compute L(x'_i, theta) of k copies in one pass: output, target and losses, (k * B, ...) each.

        The model gets `prepare(x)`.
        """
        x, target = self._copy(batch, cat(draws), len(draws))
        output = self.forward(model, prepare(x))
        return output, target, self._losses(output, target, len(draws) * batch_size(batch))

    def _losses(self, output: Any, target: Any, size: int) -> Tensor:
        """Compute the loss per example, checked: (size,)."""
        kind = without_arguments(self.loss_fn)
        if kind is cross_entropy:
            check_classification(output, target, self._read_values)
        elif kind in TOKENS:
            check_tokens(output, target, self._read_values)
        losses = self.loss_fn(output, target)
        check_losses(losses, size)
        self._read_values = False
        return losses

    def _mean(self, losses: Tensor, target: Any) -> Tensor:
        """Return the loss to backpropagate, averaged as by F.cross_entropy: over all positions not ignored."""
        return mean_loss(self.loss_fn, losses, target)


_called: "WeakKeyDictionary[Objective, WeakSet[nn.Module]]" = WeakKeyDictionary()  # not in pickles of objectives
_compiled_inside: "WeakKeyDictionary[nn.Module, nn.Module]" = WeakKeyDictionary()  # torch.compile(DDP(model)) -> model


def unwrap(model: Any) -> Any:
    """Return the module inside DistributedDataParallel, for passes without gradients and communication.

    The module inside `torch.compile(DDP(model))` is compiled with the same settings.
    """
    check_model(model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    wrapped = getattr(model, "_orig_mod", None)  # of torch.compile
    if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
        return model
    if model not in _compiled_inside:
        _compiled_inside[model] = model.dynamo_ctx(wrapped.module)
    return _compiled_inside[model]

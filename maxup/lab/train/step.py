"""One training step: the loss of a batch, its gradient and the update of the weights, as a CUDA graph if possible."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from maxup.cuda.capture import CapturedStep, capture_step, why_not_capturable
from maxup.errors import NonFiniteError
from maxup.lab.output import say
from maxup.lab.train.optim import average, learning_rate, lookahead, lookahead_decay, set_learning_rate
from maxup.lab.train.sam import sam_backward
from maxup.lab.train.state import RunState

Batch = tuple[Tensor, Tensor, Tensor]  # indices, inputs, targets
LOG_EVERY = 50  # steps


class TrainingStep:
    """Train on a batch: `updated = step(batch)`.

    Args:
        state: The state of the run, which every step changes.
        quiet: Whether to hide messages about capturing.

    Attributes:
        not_captured: Why a step is not captured as a CUDA graph, or "".
        recent: Indices and loss of the latest batches.
    """

    def __init__(self, state: RunState, *, quiet: bool) -> None:
        self.state, self.task, self.accelerator = state, state.task, state.accelerator
        self.optim = state.recipe.optim
        self.recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=LOG_EVERY)
        self.updates, self.parts = True, 1  # whether a batch ends an accumulation, and the batches in it
        self.not_captured = why_not_capturable(
            self.task.model,
            device=self.accelerator.device,
            processes=self.accelerator.num_processes,
            fixed_shapes=self.task.loader.fixed_shapes,
            accumulate=self.optim.accumulate,
            precision=state.recipe.precision,
        )
        self.update: Callable[[Batch], Tensor] = self._update
        if not self.not_captured:
            self.update = capture_step(
                self._update,
                self.task,
                stage=lambda: state.stages.stage,
                say=lambda line: None if quiet else say(line, flush=True),
            )

    def __call__(self, batch: Batch) -> bool:
        """Train on one batch. Returns whether the weights were updated: batches may be accumulated."""
        state, optim, loader = self.state, self.optim, self.task.loader
        set_learning_rate(state.optimizer, self.task.lr_scale(batch) * learning_rate(optim, state.step / state.total))
        first = (loader.position - 1) // optim.accumulate * optim.accumulate  # batch of this accumulation
        self.parts = min(optim.accumulate, len(loader) - first)
        self.updates = loader.position == first + self.parts
        start, frames = time.monotonic(), compiled_frames()
        loss = self.update(batch)
        if (isinstance(self.update, CapturedStep) and self.update.preparing) or compiled_frames() > frames:
            state.compile_seconds += time.monotonic() - start
        if self.updates and state.ema is not None and optim.name == "asgd":
            state.averaged += 1
            average(state.ema, self.task.model, 1 - 1 / state.averaged)
        elif self.updates and state.ema is not None and optim.lookahead:
            state.averaged += 1
            if state.averaged % optim.lookahead == 0:
                lookahead(state.ema, state.network, lookahead_decay(optim.lookahead, state.step / state.total))
        self.recent.append((batch[0], loss))
        state.loss += loss
        state.step += 1
        return self.updates

    def _update(self, batch: Batch) -> Tensor:
        """The part of a step that runs on the device."""
        state, optim, accelerator = self.state, self.optim, self.accelerator
        with nullcontext() if self.updates else accelerator.no_sync(state.model):
            if optim.sam is None:
                loss = self.task.step(state.model, batch).loss
                accelerator.backward(loss if self.parts == 1 else loss / self.parts)
            else:
                with self.task.repeatable(state.model, batch) as loss_fn:
                    loss = sam_backward(state.model, loss_fn, accelerator.backward, rho=optim.sam)
            if accelerator.num_processes == 1 and loss.device.type == "cpu" and not math.isfinite(loss.item()):
                state.step += 1  # the batch counts as done, although the weights did not change
                self.recent.append((batch[0], loss.detach()))
                self.check_losses()
        if self.updates:
            if optim.clip is not None:
                accelerator.clip_grad_norm_(state.model.parameters(), optim.clip)
            state.optimizer.step()
            state.optimizer.zero_grad()
            if state.ema is not None and optim.ema:
                average(state.ema, state.network, optim.ema)
        return loss.detach()

    def check_losses(self) -> None:
        """Raise a NonFiniteError if one of the latest losses is not finite. On a GPU this waits for the device."""
        finite = torch.stack([loss for _, loss in self.recent]).isfinite().tolist() if self.recent else []
        if not self.state.any_rank(not all(finite)):
            return
        if all(finite):
            raise NonFiniteError("the loss on another rank is not finite; see the error of that rank")
        indices, loss = self.recent[finite.index(False)]
        raise NonFiniteError(
            f"the loss became {float(loss)} around step {self.state.step}; the batch holds training examples "
            f"{indices.tolist()}"
        )

    def check_weights(self) -> None:
        """Raise a NonFiniteError if the weights are not finite: a gradient can overflow although the loss does not."""
        finite = torch.stack([weight.isfinite().all() for weight in self.task.model.parameters()]).all()
        if self.state.any_rank(not finite):
            raise NonFiniteError(f"the weights are no longer finite at step {self.state.step}")


def compiled_frames() -> int:
    """Return how many functions torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported by the first use of torch.compile
    return 0 if dynamo is None else dynamo.counters["frames"]["total"]

"""`captured` turns the training step of your loop into one CUDA graph, so that kernel launches cost nothing."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from maxup.cuda.capture import CapturedStep
from maxup.objectives.base import Objective
from maxup.validate import warn

GIVE_UP = 20  # changes of a setting in a row, after which a step is no longer prepared for capture


def captured(step: Callable[..., Tensor], objective: Objective, optimizer: Optimizer) -> Callable[..., Tensor]:
    """Return a function that trains like `step`, as one CUDA graph.

    A small network on a fast GPU spends most of a step launching kernels, and selection launches m times as many. A
    graph launches all of them at once. The first three calls run eagerly. Then the step is captured, and later calls
    replay it. The learning rate may change between calls, by hand or through a scheduler. Another setting of the
    optimizer, m, or the objective's settings may change too; the step is then captured again. A batch of another shape
    runs eagerly. If the step cannot be captured, a `MaxUpWarning` says why, and all calls run eagerly.

    Args:
        step: Trains on one batch of tensors and returns the loss: it calls the objective, `backward`,
            `optimizer.step()` and `optimizer.zero_grad()`. It must do the same work every time: a graph replays kernels
            and runs no Python code.
        objective: The objective that the step calls.
        optimizer: The optimizer that the step calls, built with `capturable=True`, or with `fused=True` for SGD.

    Example:
        >>> from maxup import Gaussian, MaxUp, captured
        >>> model, objective = torch.nn.Linear(5, 3), MaxUp(Gaussian(0.1), m=4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        >>> def step(x, y):
        ...     loss = objective(model, x, y)
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     return loss
        >>> step = captured(step, objective, optimizer)
        >>> loss = step(torch.rand(8, 5), torch.randint(3, (8,)))  # on a CPU, the step runs as it is
    """
    if not isinstance(objective, Objective):
        raise TypeError(f"objective={objective!r:.60}: pass the objective that the step calls")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer={optimizer!r:.60}: pass the torch.optim.Optimizer that the step calls")
    if not callable(step):
        raise TypeError(f"step={step!r:.60}: pass a function that trains on a batch and returns the loss")
    return _Captured(step, objective, optimizer)


class _Captured:
    def __init__(self, step: Callable[..., Tensor], objective: Objective, optimizer: Optimizer) -> None:
        self.step, self.objective, self.optimizer = step, objective, optimizer
        self.rates: list[Tensor] = []  # the learning rates that the graph reads
        self.graphed: CapturedStep | None = None
        self.settings: Any = None
        self.changes: float = 0  # calls in a row with new settings
        self.state, self.loads = optimizer.state, 0  # loading a state_dict replaces the state that a graph updates

    def __call__(self, *batch: Tensor) -> Tensor:
        """Train on a batch and return the loss, without a graph."""
        if not all(isinstance(part, Tensor) for part in batch):
            kinds = ", ".join(type(part).__name__ for part in batch)
            raise TypeError(f"a captured step takes tensors, but got {kinds}; pass each tensor as an argument")
        if not batch or not batch[0].is_cuda or self.changes == math.inf:
            return self._step(batch)
        if self.graphed is None:
            self._check_optimizer()
            self.rates = [torch.zeros((), device=batch[0].device) for _ in self.optimizer.param_groups]
            self.graphed = CapturedStep(
                self._step,
                key=self._key,
                generators=self._generators,
                seed=self.objective.seed_step,
                replayed=self._replayed,
                say=warn,
                needs_eager=self.objective.needs_eager,
            )
        self._update_rates()
        self._watch()
        return self.graphed(batch)

    def _step(self, batch: tuple[Tensor, ...]) -> Tensor:
        loss = self.step(*batch)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the captured step returned {loss!r:.60}, not a tensor; let it return the loss")
        return loss.detach()

    def _check_optimizer(self) -> None:
        for group in self.optimizer.param_groups:
            setting = "capturable" if "capturable" in group else "fused"  # SGD has fused only
            if not group.get(setting):
                name = type(self.optimizer).__name__
                raise ValueError(f"{name} cannot be captured as it is; build it with {setting}=True")

    def _update_rates(self) -> None:
        """Put the learning rates where the graph reads them. A loop may replace a tensor by a number."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.copy_(torch.as_tensor(group["lr"]))
                group["lr"] = rate

    def _watch(self) -> None:
        """Stop trying if a setting that the graph depends on, such as momentum, changes at every step."""
        settings = self._key()
        self.changes = self.changes + 1 if settings != self.settings else 0
        self.settings = settings
        if self.changes > GIVE_UP:
            self.changes = math.inf
            warn("the step is not captured: a setting of the optimizer or of the objective changes at every step")

    def _key(self) -> Any:
        """What a graph depends on: settings of the objective, and of the optimizer besides the learning rates."""
        settings = [
            (name, value)
            for group in self.optimizer.param_groups
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr") and not isinstance(value, Tensor)
        ]
        if self.optimizer.state is not self.state:
            self.state, self.loads = self.optimizer.state, self.loads + 1
        return self.objective.generator, self.objective.depends_on(), settings, self.loads

    def _generators(self) -> list[Generator]:
        return [self.objective.generator] if self.objective.generator is not None else []

    def _replayed(self) -> None:
        self.objective.step += 1

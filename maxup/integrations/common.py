"""What the integrations share: checks of the objective, and a trainer's loss and call of the model."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from maxup.integrations.torchvision import import_torchvision
from maxup.losses import cross_entropy
from maxup.objectives.base import Forward, LossFn, call_model
from maxup.objectives.maxup import MaxUp


def require(who: str, extra: str, *packages: str) -> Any:
    """Import a trainer's package: of several, one that is imported already, or otherwise one that is installed.

    The trainers import torchvision, so it is repaired first. If that fails, they say so themselves.
    """
    with suppress(Exception):
        import_torchvision()
    for package in sorted(packages or [extra], key=lambda package: package not in sys.modules):
        if find_spec(package.partition(".")[0]) is not None:
            return import_module(package)
    raise ImportError(f"{who} needs {extra}, which is not installed: pip install 'maxup[{extra}]'")


def check_objective(objective: Any, who: str) -> MaxUp:
    """Return the objective if it can select the batch that a trainer trains on."""
    if not isinstance(objective, MaxUp):
        raise TypeError(f"{who} expects a MaxUp objective, but got {objective!r:.60}; pass MaxUp(perturbation, m=4)")
    if objective.strategy == "retain":
        raise ValueError(f"{who} selects before the trainer's forward pass; use MaxUp(..., strategy='recompute')")
    return objective


def check_generator(objective: MaxUp, who: str, processes: int) -> None:
    """Raise if one saved state of the objective is not enough for all processes."""
    if processes > 1 and "generator" in objective.state_dict():
        raise ValueError(
            f"{who} saves one state for {processes} processes, but the state of a generator differs between them; "
            "create MaxUp without generator="
        )


@contextmanager
def defaults(objective: MaxUp, *, loss_fn: LossFn = cross_entropy, forward: Forward = call_model) -> Iterator[None]:
    """Use a trainer's loss per example and call of the model, unless the objective was created with its own."""
    saved = objective.loss_fn, objective.forward
    if objective.loss_fn is cross_entropy and loss_fn is not cross_entropy:
        if objective.score == "kl":
            raise ValueError("score='kl' needs the cross-entropy, but the trainer uses another loss; use score='loss'")
        objective.loss_fn = loss_fn
    if objective.forward is call_model:
        objective.forward = forward
    try:
        yield
    finally:
        objective.loss_fn, objective.forward = saved

"""The stages of a run: when the averaging of weights begins, and fine-tuning restarts from the best point.

Averaged SGD (Polyak and Juditsky, 1992) as AWD-LSTM uses it: plain SGD until validation no longer improves, then the
average of the weights from there on is what is evaluated. A restart takes the best weights so far, averaging anew.
"""

from typing import Any

from maxup.lab.recipes.schema import Optim


class Stages:
    """Where a run is; asked after every epoch.

    Args:
        optim: With `average_from`, `patience` and `restarts`.
        epochs: The most epochs of a stage; the first has as many in any case.
        lower: Whether a lower number is better.

    Example:
        >>> stages = Stages(Optim(name="asgd", schedule="constant", average_from=None, patience=1), 9, lower_is_better=True)
        >>> for epoch, perplexity in enumerate([80, 90, 85], 1):
        ...     stages.check(epoch, perplexity)
        >>> stages.averaging
        True
    """

    def __init__(self, optim: Optim, epochs: int, *, lower_is_better: bool) -> None:
        if optim.restarts and (optim.name != "asgd" or optim.schedule != "constant"):
            raise ValueError(
                "optim.restarts are of averages at one rate: set optim.name=asgd and optim.schedule=constant"
            )
        if optim.name == "asgd" and optim.ema is not None:
            raise ValueError("optim.name=asgd and optim.ema are two averages of the weights; choose one")
        self.optim, self.epochs, self.sign = optim, epochs, 1 if lower_is_better else -1
        self.stage, self.begun, self.over = 0, 0, False
        self.checks: list[float] = []
        self.averaging = optim.name == "asgd" and optim.average_from == 0

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.stage > self.optim.restarts

    @property
    def longest(self) -> int:
        """The most epochs the run can have."""
        return self.epochs * (1 + self.optim.restarts)

    def check(self, epoch: int, value: float) -> None:
        """Take the end of an epoch into account: how many there were, and what was measured."""
        value *= self.sign
        past = self.checks[: -self.optim.patience]
        worse = bool(past) and value > min(past)  # than the best of all but the last few
        self.checks.append(value)
        spent = epoch - self.begun
        self.over = spent >= self.epochs or (self.stage > 0 and worse)
        if self.optim.name == "asgd" and not self.averaging:
            start = self.optim.average_from
            self.averaging = worse if start is None else spent >= start * self.epochs - 1e-9

    def next(self, epoch: int) -> None:
        """Begin the next stage."""
        self.stage, self.begun, self.over, self.checks = self.stage + 1, epoch, False, []
        self.averaging = True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        names = ("stage", "begun", "over", "checks", "averaging")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        kinds = {"stage": int, "begun": int, "over": bool, "checks": list, "averaging": bool}
        if set(state) != set(kinds) or not all(type(state[name]) is kind for name, kind in kinds.items()):
            raise ValueError("its stages are none of a run")
        vars(self).update(state)

"""The stages of a run: when averaging of the weights starts, and when fine-tuning restarts from the best epoch.

Averaged SGD (Polyak and Juditsky, 1992) as AWD-LSTM uses it: plain SGD until validation no longer improves; from then
on, the average of the weights is evaluated. A restart takes the best weights so far and starts a new average.
"""

from typing import Any

from maxup.lab.recipes.schema import Optim


class Stages:
    """The stage of a run, updated after every epoch.

    Args:
        optim: The settings `average_from`, `patience` and `restarts`.
        epochs: The maximum number of epochs per stage. The first stage always has that many.
        lower_is_better: Whether a lower metric is better.
        eval_every: The number of epochs between evaluations.

    Example:
        >>> optim = Optim(name="asgd", schedule="constant", average_from=None, patience=1)
        >>> stages = Stages(optim, 9, lower_is_better=True)
        >>> for epoch, perplexity in enumerate([80, 90, 85], 1):
        ...     stages.check(epoch, perplexity)
        >>> stages.averaging
        True
    """

    def __init__(self, optim: Optim, epochs: int, *, lower_is_better: bool, eval_every: int = 1) -> None:
        if optim.restarts and (optim.name != "asgd" or optim.schedule != "constant"):
            raise ValueError(
                "optim.restarts needs averaging at a constant rate: set optim.name=asgd and optim.schedule=constant"
            )
        averages = {"optim.name=asgd": optim.name == "asgd", "optim.ema": optim.ema, "optim.lookahead": optim.lookahead}
        if len(chosen := [name for name, value in averages.items() if value]) > 1:
            raise ValueError(f"{' and '.join(chosen)} both average the weights; choose one")
        if eval_every > 1 and (optim.restarts or (optim.name == "asgd" and optim.average_from is None)):
            raise ValueError(
                f"eval_every={eval_every} skips evaluations that optim.restarts and optim.average_from=null need; "
                "set eval_every=1"
            )
        self.eval_every = eval_every
        self.optim, self.epochs, self.sign = optim, epochs, 1 if lower_is_better else -1
        self.stage, self.begun, self.over = 0, 0, False
        self.checks: list[float] = []
        self.averaging = optim.name == "asgd" and optim.average_from == 0

    @property
    def done(self) -> bool:
        return self.stage > self.optim.restarts

    @property
    def longest(self) -> int:
        """The maximum number of epochs of the run."""
        return self.epochs * (1 + self.optim.restarts)

    def should_evaluate(self, epoch: int) -> bool:
        """Whether to evaluate after `epoch` epochs."""
        return epoch % self.eval_every == 0 or epoch - self.begun >= self.epochs

    def check(self, epoch: int, value: float | None) -> None:
        """Update the stage after `epoch` epochs. `value` is the metric of the last one, if it was evaluated."""
        worse = False
        if value is not None:
            value *= self.sign
            past = self.checks[: -self.optim.patience]
            worse = bool(past) and value > min(past)  # non-monotone trigger: the last `patience` do not count
            self.checks.append(value)
        spent = epoch - self.begun
        self.over = spent >= self.epochs or (self.stage > 0 and worse)
        if self.optim.name == "asgd" and not self.averaging:
            start = self.optim.average_from
            self.averaging = worse if start is None else spent >= start * self.epochs - 1e-9

    def extend(self, epoch: int) -> None:
        """Update the stage after `epoch` epochs of a run that now has more."""
        self.over = epoch - self.begun >= self.epochs

    def next(self, epoch: int) -> None:
        self.stage, self.begun, self.over, self.checks = self.stage + 1, epoch, False, []
        self.averaging = True

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stage", "begun", "over", "checks", "averaging")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.state_dict():
            setattr(self, name, state[name])

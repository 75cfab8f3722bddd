"""Whether a checkpoint, whole as it may be, is one that this run could have written: files can be forged."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from maxup.validate import is_int

if TYPE_CHECKING:
    from maxup.lab.train.loop import _Run

# By optimizer, what it keeps of every parameter, and which of it has the parameter's shape; the rest are numbers.
KEPT = {
    "SGD": {"momentum_buffer"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
}
SHAPED = {"momentum_buffer", "exp_avg", "exp_avg_sq"}


def check(run: "_Run", step: int, state: dict[str, Any]) -> None:
    """A ValueError where a state is none that this run saves at this step.

    What it cannot see are other numbers of the right kind, such as other weights.
    """
    checks: dict[str, Callable[[Any], bool]] = {
        "step": lambda it: is_int(it, 0, run.total) and it == step,
        "loader": lambda it: _is_place(run, it["epoch"], it["position"], step),
        "recorded": lambda it: is_int(it, 0, step),
        "metrics_size": lambda it: is_int(it, 0, 2**62),
        "seconds": _is_time,
        "training_seconds": _is_time,
        "last": lambda it: _is_record(run, it, state["loader"]["epoch"], newest=True),
        "best": lambda it: _is_record(run, it, state["loader"]["epoch"]),
        "model": lambda it: _shapes(it) == _shapes(run.accelerator.unwrap_model(run.model).state_dict()),
        "ema": lambda it: _is_average(run, it, state["averaged"], step),
        "stages": lambda it: _is_stage(run, it, state["loader"]["epoch"]),
        "optimizer": lambda it: _is_optimizer(run.optimizer, it),
        "scaler": lambda it: (it is None) == (run.accelerator.scaler is None),
        "ranks": lambda it: all(_is_rank(run, rank, step) for rank in it),
    }
    for name, fits in checks.items():
        try:
            right = fits(state[name])
        except Exception:  # of whatever type: anything may be anywhere
            right = False
        if not right:
            raise ValueError(f"its {name} is none that a run of this recipe has at step {step}")


def _is_place(run: "_Run", epoch: Any, position: Any, step: int) -> bool:
    loader = run.task.loader
    if not is_int(epoch, 0, run.stages.longest) or not is_int(position, 0, step):
        return False
    return loader.steps(epoch) + position == step <= loader.steps(epoch + 1)


def _is_average(run: "_Run", weights: Any, count: Any, step: int) -> bool:
    if weights is None:
        return run.recipe.optim.ema is None and count == 0
    wanted = run.recipe.optim.ema is not None or run.recipe.optim.name == "asgd"
    same = _shapes(weights) == _shapes(run.accelerator.unwrap_model(run.model).state_dict())
    return wanted and same and is_int(count, 0, step)


def _is_stage(run: "_Run", stages: Any, epoch: int) -> bool:
    """The kinds are checked by the stages themselves."""
    numbers = all(type(value) is float for value in stages["checks"])
    return numbers and is_int(stages["stage"], 0, run.recipe.optim.restarts + 1) and is_int(stages["begun"], 0, epoch)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_record(run: "_Run", record: Any, epoch: int, *, newest: bool = False) -> bool:
    """Whether this is what an epoch of the run ends with; before the first end, {}."""
    if not epoch:
        return bool(record == {})
    names = {f"{name}_{kind}" for name in run.task.every_epoch for kind in run.task.metrics}
    numbers = all(type(record[name]) is float for name in names) and is_int(record.get("skipped_images", 0), 0, 2**62)
    of = record["epoch"]
    return (
        set(record) - {"skipped_images"} == {"epoch", *names}
        and numbers
        and is_int(of, 0, epoch)
        and (not newest or of == epoch)
    )


def _is_rank(run: "_Run", rank: dict[str, Any], step: int) -> bool:
    """The rest of it is checked by those who take it: generators, and the random streams."""
    loss, count = rank["loss"], rank["objective"]["step"]
    return type(count) is int and count == step and (loss.dtype, loss.shape) == (run.loss.dtype, run.loss.shape)


def _shapes(tensors: dict[Any, Any]) -> dict[Any, Any]:
    return {k: (v.dtype, v.shape) if isinstance(v, Tensor) else type(v) for k, v in tensors.items()}


def _is_optimizer(optimizer: Any, state: dict[str, Any]) -> bool:
    """Whether an optimizer with the parameters of this one could be in a state."""
    groups = [{k: v for k, v in group.items() if k != "lr"} for group in state["param_groups"]]
    mine = optimizer.state_dict()["param_groups"]
    rates = [float(group["lr"]) for group in state["param_groups"]]
    if groups != [{k: v for k, v in group.items() if k != "lr"} for group in mine] or not all(map(_is_time, rates)):
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = KEPT.get(type(getattr(optimizer, "optimizer", optimizer)).__name__)
    for index, kept in state["state"].items():
        if not is_int(index, 0, len(parameters) - 1) or (keys is not None and set(kept) != keys):
            return False
        for name, value in kept.items():
            shape = parameters[index].shape if name in SHAPED else ()
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
                return False
    return True

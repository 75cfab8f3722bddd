"""The state of a run: what training changes, and what a checkpoint contains."""

from dataclasses import asdict
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim import Optimizer

from maxup.lab.models.frozen import frozen_copy
from maxup.lab.recipes.schema import Recipe
from maxup.lab.train.stages import Stages
from maxup.rng import load_rng_state_dict, rng_state_dict

COUNTERS = ("step", "recorded", "seconds", "training_seconds", "compile_seconds", "best", "last", "averaged")
ADDED = {"compile_seconds": 0.0}  # counters that older checkpoints do not have


class RunState:
    """Everything that changes while a run trains.

    Args:
        task: The data, the objective and their random streams. Its loader knows the position in the epoch.
        accelerator: Accelerate's view of the processes.
        model: The model as Accelerate prepared it.
        optimizer: The optimizer of its parameters.

    Attributes:
        ema: The average of the weights, or the slow weights of lookahead, or None.
        averaged: The number of weights in the uniform average of "asgd", or of updates with lookahead.
        stages: When averaging starts and the run restarts.
        step: Steps done.
        total: Steps of the whole run.
        recorded: The step of the last record of the training loss.
        seconds: Time of the whole run.
        training_seconds: Time of the training steps alone.
        compile_seconds: The part of it in which steps were compiled and captured as a CUDA graph.
        best: Metrics of the best epoch.
        last: Metrics of the last epoch.
        loss: Sum of this process's losses since the last record.
    """

    def __init__(
        self, recipe: Recipe, task: Any, accelerator: Accelerator, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self.recipe, self.task, self.accelerator = recipe, task, accelerator
        self.model, self.optimizer = model, optimizer
        self.ema = frozen_copy(task.model) if recipe.optim.ema or recipe.optim.lookahead else None
        self.averaged = 0
        self.stages = Stages(
            recipe.optim, recipe.epochs, lower_is_better=task.lower_is_better, eval_every=recipe.eval_every
        )
        self.step, self.recorded = 0, 0
        self.total = task.loader.steps(self.stages.longest)
        self.seconds, self.training_seconds, self.compile_seconds = 0.0, 0.0, 0.0
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.loss = torch.zeros((), device=accelerator.device)

    @property
    def network(self) -> nn.Module:
        """The model without Accelerate's wrapper."""
        network: nn.Module = self.accelerator.unwrap_model(self.model)
        return network

    @property
    def evaluated(self) -> nn.Module:
        """The model that is evaluated: the average of the weights if there is one."""
        return self.network if self.ema is None else self.ema

    def any_rank(self, flag: bool) -> bool:
        """Whether a flag is set in any process. All processes must act alike."""
        if self.accelerator.num_processes == 1:
            return flag
        return bool(self.accelerator.reduce(torch.tensor(int(flag), device=self.accelerator.device), "sum"))

    def start_average(self) -> None:
        """Start a new uniform average from the current weights."""
        self.ema, self.averaged = frozen_copy(self.task.model), 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint contains. Every process must call this; all get the same."""
        scaler = self.accelerator.scaler
        return {
            "recipe": asdict(self.recipe),
            **{name: getattr(self, name) for name in COUNTERS},
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "stages": self.stages.state_dict(),
            "task": self.task.identity,
            "loader": self.task.loader.state_dict(),
            "ranks": gather_object([self._rank_state_dict()]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned in a run with the same recipe and number of processes.

        Raises:
            Exception: The state does not match this run, which is then partly restored and must load another state.
        """
        self.network.load_state_dict(state["model"])
        self._load_optimizer(state["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.ema = None
        if state["ema"] is not None:
            self.ema = frozen_copy(self.task.model)
            self.ema.load_state_dict(state["ema"])
        self.stages.load_state_dict(state["stages"])
        self.task.loader.load_state_dict(state["loader"])
        state = ADDED | state
        for name in COUNTERS:
            if type(state[name]) is not type(getattr(self, name)):
                raise ValueError(f"checkpoint field {name!r} has type {type(state[name]).__name__}")
            setattr(self, name, state[name])
        mine = state["ranks"][self.accelerator.process_index]
        self.loss.copy_(mine["loss"])
        self.task.objective.load_state_dict(mine["objective"])
        self.task.load_state_dict(mine["task"])
        self.task.generator.set_state(mine["augment"])
        load_rng_state_dict(mine["streams"])

    def _rank_state_dict(self) -> dict[str, Any]:
        """What differs between processes: the random streams and the running loss."""
        return {
            "objective": self.task.objective.state_dict(),
            "task": self.task.state_dict(),
            "augment": self.task.generator.get_state(),
            "loss": self.loss.cpu(),
            "streams": rng_state_dict(),
        }

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # load_state_dict leaves it on the CPU
                group["lr"] = group["lr"].to(self.accelerator.device)
        for parameter, buffers in self.optimizer.state.items():  # fused updates need the parameter's memory format
            for key, value in buffers.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    buffers[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

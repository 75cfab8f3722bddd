from types import SimpleNamespace

import torch
from accelerate import Accelerator
from torch import nn

from maxup.cuda.capture import CapturedStep
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks.vision import Vision
from maxup.lab.train import step as module
from maxup.lab.train.optim import create_optimizer
from maxup.lab.train.state import RunState
from maxup.lab.train.step import TrainingStep
from tests.lab.train.test_loop import RECIPE


def test_the_time_of_preparing_a_graph_is_counted_apart(monkeypatch):
    """With a fake clock and a fake captured step that takes 10 seconds in the first three calls, then 1."""
    recipe, now, calls = recipe_from(RECIPE), [0.0], iter(range(8))

    class Fake(CapturedStep):
        def __init__(self):
            self.preparing = False

        def __call__(self, batch):
            self.preparing = next(calls) < 3
            now[0] += 10 if self.preparing else 1
            return torch.zeros(())

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    accelerator = Accelerator(cpu=True)
    task = Vision(recipe, accelerator.device)
    state = RunState(recipe, task, accelerator, task.model, create_optimizer(task.model, recipe.optim))
    step = TrainingStep(state, quiet=True)
    for batch in task.loader:
        step(batch)
    assert (state.step, state.compile_seconds) == (4, 0)  # a plain step
    step.update = Fake()
    for batch in task.loader:
        step(batch)
    assert (state.step, state.compile_seconds) == (8, 30)


def test_the_time_of_torch_compile_is_counted_apart(monkeypatch):
    """With a fake clock. The network is compiled in the first step, and again for the last, smaller batch."""
    recipe, now = recipe_from(RECIPE), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    accelerator = Accelerator(cpu=True)
    task = Vision(recipe, accelerator.device)
    compiled = torch.compile(nn.Linear(2, 2), backend="eager", dynamic=False)
    state = RunState(recipe, task, accelerator, task.model, create_optimizer(task.model, recipe.optim))
    step = TrainingStep(state, quiet=True)
    sizes = iter([4, 4, 4, 3])

    def update(batch):
        now[0] += 10
        return compiled(torch.zeros(next(sizes), 2)).detach().sum()

    step.update = update
    for batch in task.loader:
        step(batch)
    assert (state.step, state.compile_seconds) == (4, 20)

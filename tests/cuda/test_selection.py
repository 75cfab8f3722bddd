"""`CapturedSelection` with a stand-in for CUDA graphs. tests/gpu runs it on a GPU."""

import gc
import random
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import Compose, Cutout, Gaussian, MaxUp, MaxUpWarning, Views
from maxup.cuda.selection import MOST_CAPTURES, _why_not
from tests.cuda.fake_graph import FakeGraph, capture_on_a_cpu
from tests.cuda.selection_cases import CHANGES, Net, data, selected


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    capture_on_a_cpu(monkeypatch)


def exact(objective, model, steps, change=lambda step: None):
    """Whether the selected copies have their scored losses in the training pass, in every step."""
    found = []
    for step, (x, y) in enumerate(data(steps)):
        change(step)
        found.append(objective.run(model, x, y).report.replay_exact)
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_that_is_out_of_date_is_not_replayed(change):
    with warnings.catch_warnings():
        warnings.simplefilter("error", MaxUpWarning)
        found, objective = selected(CHANGES[change], capture=True)
    expected, _ = selected(CHANGES[change], capture=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert objective._captured.captured is not None, "not captured again"
    assert objective._captured.captures == (1 if change == "load_seed" else 2)  # the generator is the same


def test_a_new_model_is_not_scored_with_the_weights_of_an_old_one():
    """Even if it is at the same address."""
    objective = MaxUp(Gaussian(0.5), m=4, capture=True)
    for seed in range(4):
        model = Net(seed)
        assert all(exact(objective, model, 6))
        del model
        gc.collect()


def test_two_models_take_turns():
    objective, models = MaxUp(Gaussian(0.5), m=4, capture=True), (Net(0), Net(1))
    for i, (x, y) in enumerate(data()):
        assert objective.run(models[i % 2], x, y).report.replay_exact


def test_a_setting_that_changes_again_and_again_ends_capturing():
    objective, model = MaxUp(Gaussian(0.5), m=4, capture=True), Net()

    def change(step):
        model.temperature = 1.0 + step // 4

    with pytest.warns(MaxUpWarning, match=r"this changed soon: attribute 'temperature' of Net; keep it fixed"):
        assert all(exact(objective, model, 4 * MOST_CAPTURES + 4, change))
    assert objective._captured.captured is None


def test_values_elsewhere_are_noticed_by_a_repeated_comparison(monkeypatch):
    monkeypatch.setattr("maxup.cuda.selection.CHECK_EVERY", 4)
    temperature = [1.0]

    def divide(output):
        return output / temperature[0]

    def loss_fn(output, target):  # what it reads is compared, but not what functions that it calls read
        return F.cross_entropy(divide(output), target, reduction="none")

    def change(step):
        temperature[0] = 1.0 if step < 5 else 5.0

    objective, model = MaxUp(Gaussian(0.5), m=4, capture=True, loss_fn=loss_fn), Net()
    with pytest.warns(MaxUpWarning, match="a graph finds other losses"):
        found = exact(objective, model, 12, change)
    assert [i for i, one in enumerate(found) if not one] == [5]  # the next replay is compared


class LayerDrop(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x if self.draw() < 0.05 else 2 * x


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, np.random.rand])
def test_layers_that_are_dropped_by_the_cpu_are_not_captured(draw):
    model, objective = nn.Sequential(nn.Linear(20, 5), LayerDrop(draw)), MaxUp(Gaussian(0.5), m=4, capture=True)
    with pytest.warns(MaxUpWarning, match="draws random numbers on the CPU"):
        assert all(exact(objective, model, 10))


def test_a_batch_with_gradients_does_not_keep_its_graph():
    first, model, objective = nn.Linear(20, 20), Net(), MaxUp(Gaussian(0.5), m=4, capture=True)
    for x, y in data():
        objective(model, first(x), y).backward()
    assert first.weight.grad is not None
    assert objective._captured.captured.inputs[0].grad_fn is None


def test_an_error_of_a_step_is_the_only_one(monkeypatch):
    model, objective = Net(), MaxUp(Gaussian(0.5), m=4, capture=True)
    exact(objective, model, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Net, "forward", Mock(side_effect=torch.OutOfMemoryError("full")))
        with pytest.raises(torch.OutOfMemoryError):
            exact(objective, model, 1)  # the watched selection
    assert all(exact(objective, model, 4))
    assert objective._captured.captured is not None


class BreaksCapture(nn.Module):
    def forward(self, x):
        if FakeGraph.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x


def test_a_failed_capture_is_undone():
    losses = []
    for capture in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5), BreaksCapture())
        objective = MaxUp(Gaussian(0.5), m=4, norm="running", capture=capture)
        objective.load_state_dict({"seed": 5, "step": 0})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses.append([objective(model, x, y).detach() for x, y in data()])
        assert sum("not permitted when stream is capturing" in str(w.message) for w in caught) == capture
        assert model[1].training
    torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_draws_that_python_code_counts_cannot_be_captured():
    with pytest.raises(ValueError, match=r"the draws of Views do not depend on the generator alone; remove capture"):
        MaxUp(Compose(Gaussian(0.1), Views()), capture=True)


class Weight(nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("tensors", "module", "dropout", "reason"),
    [
        ([torch.zeros(2), None], nn.Linear(2, 2), True, ""),
        ([torch.zeros(2)], nn.Dropout(0.5), True, "add dropout=False"),
        ([torch.zeros(2)], nn.Dropout(0.5), False, ""),
        ([torch.zeros(2)], nn.Dropout(0.5).eval(), True, ""),
        ([torch.zeros(2), "a"], nn.Linear(2, 2), True, "x or y holds a str; pass tensors"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], nn.Linear(2, 2), True, "on several devices"),
        ([torch.zeros(2)], nn.ParameterList([Weight(torch.zeros(2))]), True, "a weight is a Weight"),
    ],
)
def test_what_cannot_be_captured(tensors, module, dropout, reason):
    found = _why_not(tensors, [module], dropout)
    assert reason in found
    assert bool(reason) == bool(found)


def test_a_step_with_one_copy_and_other_shapes_run_eagerly():
    objective = MaxUp(Cutout(4), m=lambda step: 1 if step < 3 else 2, capture=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    for step in range(12):
        size = 7 if step == 9 else 16
        assert objective.run(model, torch.randn(size, 1, 8, 8), torch.randint(5, (size,))).report.replay_exact
        assert objective._captured.captures == (step >= 5)
    assert objective._captured.captured.replays == 12 - 5 - 1

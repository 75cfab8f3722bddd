"""`strategy="auto"`: the faster of two strategies that give the same gradients, measured without side effects."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from maxup import Gaussian, MaxUp
from maxup.objectives import auto_strategy
from maxup.objectives.auto_strategy import STRATEGIES, AutoStrategy, measure

CPU = torch.device("cpu")


class Counter(nn.Module):
    """Count forward passes in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), Counter(), nn.Linear(8, 3))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(10, 6), torch.randint(3, (10,))


@pytest.fixture
def clock(monkeypatch):
    """A fake clock: the seconds of each strategy."""
    seconds = {"recompute": 1.0, "retain": 2.0}

    def time(function, device):
        function()
        return seconds[function.args[0]]

    monkeypatch.setattr(auto_strategy, "_time", time)
    return seconds


def gradients(model, batch, strategy, steps=3, **settings):
    torch.manual_seed(2)
    model = copy.deepcopy(model)
    objective = MaxUp(Gaussian(1.0), m=4, strategy=strategy, generator=torch.Generator().manual_seed(0), **settings)
    for _ in range(steps):
        outcome = objective.run(model, *batch)
        outcome.loss.backward()
    state = torch.get_rng_state(), objective.generator.get_state(), model[2].passes
    return objective, [outcome.worst.copy, *(p.grad for p in model.parameters()), *state]


@pytest.mark.parametrize("faster", STRATEGIES)
def test_the_faster_strategy_is_used_and_measuring_leaves_no_trace(model, batch, clock, faster):
    clock[faster] = 0.5
    objective, found = gradients(model, batch, "auto")
    _, expected = gradients(model, batch, faster)
    assert list(objective._strategies.chosen.values()) == [faster]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_every_shape_and_m_is_measured_once(model, batch, clock):
    objective = MaxUp(Gaussian(1.0), m=lambda step: 1 + step // 4, strategy="auto")
    for step in range(12):
        x, y = (part[: 10 if step % 2 else 6] for part in batch)
        objective(model, x, y)
    x, y = (tuple(str((n, *part.shape[1:])) for n in (6, 10)) for part in batch)
    assert list(objective._strategies.chosen) == [f"m={m}, {x[i]}, {y[i]}" for m in (2, 3) for i in (0, 1)]


def test_a_resumed_run_does_not_measure_again(model, batch, clock, monkeypatch):
    clock["retain"] = 0.5
    objective = MaxUp(Gaussian(1.0), m=4, strategy="auto")
    objective(model, *batch)
    resumed = MaxUp(Gaussian(1.0), m=4, strategy="auto")
    resumed.load_state_dict(objective.state_dict())
    monkeypatch.setattr(auto_strategy, "measure", lambda run, device: pytest.fail("measured again"))
    resumed(model, *batch)
    assert resumed._strategies.chosen == objective._strategies.chosen
    assert set(resumed._strategies.chosen.values()) == {"retain"}


def test_a_model_with_batch_norm_is_recomputed(batch, clock):
    clock["retain"] = 0.5
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    objective = MaxUp(Gaussian(1.0), m=4, strategy="auto")
    objective(model, *batch).backward()
    assert set(objective._strategies.chosen.values()) == {"recompute"}
    assert model[1].num_batches_tracked == 1


def test_out_of_memory(clock):
    def run(strategy):
        if strategy == "retain":
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert measure(run, CPU) == [1.0, math.inf]


def test_an_error_of_both_strategies_is_raised_by_the_step(batch, clock):
    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("the model is broken")

    with pytest.raises(RuntimeError, match="the model is broken"):
        MaxUp(Gaussian(1.0), m=4, strategy="auto")(Broken(6, 3), *batch)


def test_a_model_that_gets_batch_norm_in_training_mode_is_recomputed(batch, clock):
    clock["retain"] = 0.5
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    found = []
    for strategy in ("auto", "recompute"):
        objective = MaxUp(Gaussian(1.0), m=4, strategy=strategy, generator=torch.Generator().manual_seed(0))
        objective(model.eval(), *batch)
        found.append(objective.run(model.train(), *batch).worst.copy)
    assert torch.equal(*found)


def test_nothing_is_measured_without_gradients(model, batch, clock):
    objective = MaxUp(Gaussian(1.0), m=4, strategy="auto")
    with torch.no_grad():
        objective(model, *batch)
    objective(nn.Sequential(nn.Flatten(), nn.Softmax(1)), *batch)
    assert not objective._strategies.chosen


def test_the_shortest_time_counts_and_the_first_does_not(monkeypatch):
    times = iter([0.0, 0.0, 5.0, 3.0, 2.0, 4.0, 6.0, 7.0])
    monkeypatch.setattr(auto_strategy, "_time", lambda function, device: next(times))
    assert measure(lambda strategy: None, CPU) == [2.0, 3.0]


def test_select_recomputes(model, batch):
    objective = MaxUp(Gaussian(1.0), m=4, strategy="auto")
    objective.select(model, *batch)
    assert not objective._strategies.chosen


def test_ranks_decide_together(monkeypatch):
    """The total time decides, and shapes that differ between ranks do not matter."""
    other = torch.tensor([5.0, 1.0])
    monkeypatch.setattr(auto_strategy, "_several_processes", lambda: True)
    monkeypatch.setattr(auto_strategy.distributed, "all_reduce", lambda seconds: seconds.add_(other))
    monkeypatch.setattr(auto_strategy, "measure", lambda run, device: [1.0, 2.0])
    strategies = AutoStrategy()
    assert strategies.choose((torch.zeros(3), None), 4, print) == "retain"
    assert strategies.chosen == {"m=4": "retain"}
    assert strategies.get((torch.zeros(7), None), 4) == "retain"
    assert strategies.get((torch.zeros(7), None), 2) == "recompute"


@pytest.mark.parametrize("setting", [{"norm": "running"}, {"chunk_size": 2}, {"compile": True}, {"fast": True}])
def test_settings_of_scoring_passes_are_refused(setting):
    with pytest.raises(ValueError, match=r"needs strategy='recompute', but strategy='auto'; remove one of them"):
        MaxUp(Gaussian(1.0), strategy="auto", **setting)


def test_checks_of_the_first_batch_are_not_timed(monkeypatch):
    """They run once per draw and copy, so they would make recompute look slower than it is."""
    checked = []
    monkeypatch.setattr(
        "maxup.objectives.base.forbid_side_effects", lambda batch, who: checked.append(who) or nullcontext()
    )
    model, x, y = nn.Linear(5, 3), torch.rand(8, 5), torch.arange(8) % 3
    objective = MaxUp(Gaussian(0.1), m=6, strategy="auto")
    during = []
    choose = objective._strategies.choose
    monkeypatch.setattr(objective._strategies, "choose", lambda *args: (choose(*args), during.append(len(checked)))[0])
    objective(model, x, y)
    assert during == [0]
    assert checked, "the step itself is checked"


def test_measuring_does_not_count_as_ties(batch):
    """A zero-initialized last layer gives equal losses. That is a reason to warn after 8 batches, not after one."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    objective = MaxUp(Gaussian(0.1), m=4, strategy="auto")
    objective(model, *batch)  # warnings are errors
    assert objective._ties.ties == 1

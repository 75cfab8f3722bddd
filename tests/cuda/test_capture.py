"""When a step cannot be captured, and how synchronization is detected. tests/gpu tests the capture itself."""

import contextlib
import math
import random
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from maxup.cuda.capture import CapturedStep, record_syncs, why_not_capturable
from maxup.cuda.graph import WARMUP

SAFE = {
    "device": torch.device("cuda"),
    "processes": 1,
    "fixed_shapes": True,
    "accumulate": 1,
    "precision": "bf16",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"precision": "no"}, ""),
        ({"device": torch.device("cpu")}, "no CUDA device"),
        ({"processes": 2}, "several processes"),
        ({"fixed_shapes": False}, "batches of different sizes"),
        ({"accumulate": 4}, "optim.accumulate is 4"),
        ({"precision": "fp16"}, "precision is fp16"),
    ],
)
def test_reasons(changes, reason):
    assert why_not_capturable(nn.Linear(2, 2), **SAFE | changes) == reason


def test_active_dropout_cannot_be_captured():
    assert why_not_capturable(nn.Sequential(nn.Dropout(0.1)), **SAFE) == "active Dropout"
    assert why_not_capturable(nn.Sequential(nn.Dropout(0.0)), **SAFE) == ""


@pytest.fixture
def events(monkeypatch):
    """Replace graphs by fakes, and record what happens."""
    found = []

    def capture(self, batch):
        found.append("capture")
        self.batch, self.loss = batch, torch.zeros(())
        self.graph = SimpleNamespace(replay=lambda: found.append("replay"))
        return self.graph

    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(CapturedStep, "_capture", capture)
    return found


def captured_step(events, **options):
    calls = {name: lambda name=name: events.append(name) for name in ("seed", "replayed")}
    return CapturedStep(
        lambda batch: events.append("eager"), key=lambda: 0, generators=list, say=print, **calls, **options
    )


def test_generators_are_seeded_before_capture_and_before_every_replay(events):
    """Capturing runs the step's Python code, so no `replayed` follows the first replay."""
    step, batch = captured_step(events), (torch.zeros(1),)
    step.captured_for, step.eager, step.shapes = 0, WARMUP, [batch[0].shape]
    preparing = []
    for _ in range(2):
        step(batch)
        preparing.append(step.preparing)
    assert preparing == [True, False]
    assert events == ["seed", "capture", "replay", "seed", "replay", "replayed"]
    events.clear()
    step.needs_eager = lambda: True
    step(batch)
    step.needs_eager = lambda: False
    step(batch)
    assert events == ["eager", "seed", "replay", "replayed"]


def test_a_shape_runs_eagerly_before_it_is_captured(events, monkeypatch):
    """Otherwise the last batch of an epoch could be captured, and all full batches would run eagerly."""
    monkeypatch.setattr(CapturedStep, "_eager_step", lambda self, batch: events.append("warmup"))
    step, full, last = captured_step(events), (torch.zeros(4),), (torch.zeros(2),)
    for batch in (full,) * WARMUP + (last, full, full, last, full):
        step(batch)
    events = [event for event in events if event not in ("seed", "replayed")]
    assert events == ["warmup"] * WARMUP + ["eager", "eager", "capture", "replay", "eager", "replay"]


def test_a_step_that_checks_the_selection_is_not_the_monitored_one(events, monkeypatch):
    """It synchronizes, and the step would never be captured."""
    monkeypatch.setattr(CapturedStep, "_eager_step", lambda self, batch: events.append(self.eager))
    numbers = iter(range(100))
    step = captured_step(events, needs_eager=lambda: next(numbers) == 0)  # asked at the last step of the warmup only
    for _ in range(WARMUP + 1):
        step((torch.zeros(4),))
    assert events == [*range(1, WARMUP), WARMUP - 1, WARMUP]


@pytest.fixture
def device(monkeypatch):
    """A fake of torch's synchronization debug mode, which warns once that it is a prototype."""
    modes = [0]

    def choose(mode):
        modes.append(mode)
        if mode == "warn" and modes.count("warn") == 1:
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all "
                          "synchronizing operations", stacklevel=2)  # fmt: skip

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", choose)
    return modes


def test_the_prototype_warning_is_not_a_synchronization(device):
    for _ in range(2):
        with record_syncs() as syncs:
            pass
        assert syncs == []
    assert device == [0, "warn", 0, "warn", 0]


def test_synchronization_is_recorded_and_other_warnings_pass(device):
    with warnings.catch_warnings(record=True, action="always") as passed, record_syncs() as syncs:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("mind the gap", stacklevel=1)
    assert syncs == ["called a synchronizing CUDA operation"]
    assert [str(w.message) for w in passed] == ["mind the gap"]


def test_the_mode_is_restored_when_a_step_fails(device):
    with pytest.raises(ZeroDivisionError), record_syncs():
        raise ZeroDivisionError
    assert device[-1] == 0


@pytest.mark.parametrize("possible", [True, False])
def test_a_step_prepares_until_it_is_captured_and_again_when_the_key_changes(monkeypatch, possible):
    """With a fake graph and fake eager steps. A step that cannot be captured prepares only while it tries."""

    def capture(self, batch):
        self.batch, self.loss = batch, torch.zeros(())
        self.graph = SimpleNamespace(replay=lambda: None)
        return self.graph

    def eager(self, batch):
        if self.eager == WARMUP and not possible:
            self.eager = -math.inf

    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(CapturedStep, "_capture", capture)
    monkeypatch.setattr(CapturedStep, "_eager_step", eager)
    m, nothing = [1], lambda: None
    step = CapturedStep(torch.sum, key=lambda: m[0], generators=list, say=print, seed=nothing, replayed=nothing)
    preparing = []
    for call in range(12):
        m[0] = 1 + call // 6
        step((torch.zeros(1),))
        preparing.append(step.preparing)
    once = [True] * (WARMUP + 1) + [False] * 2
    assert preparing == (once * 2 if possible else [True] * WARMUP + [False] * 9)


@pytest.mark.parametrize(
    ("draw", "name"),
    [(lambda: None, None), (lambda: torch.rand(()), "torch"), (lambda: random.random(), "Python")],
)
def test_a_step_that_draws_random_numbers_on_the_host_is_not_captured(events, monkeypatch, draw, name):
    """LayerDrop decides on the CPU which layers run. A graph would run the same layers forever."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: contextlib.nullcontext())
    monkeypatch.setattr("maxup.cuda.capture.record_syncs", lambda: contextlib.nullcontext([]))
    said = []
    step = captured_step(events)
    step.step, step.say = lambda batch: draw(), said.append
    for _ in range(WARMUP):
        step((torch.zeros(4),))
    reason = f"the network draws from the global random state of {name}, which a CUDA graph cannot restore"
    expected = [f"the step is not captured: {reason}"]
    assert said == (expected if name else [])
    assert (step.eager == -math.inf) == bool(name)

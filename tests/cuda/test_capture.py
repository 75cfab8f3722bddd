"""What speaks against capturing a step, and how a step that waits for the device is noticed; tests/gpu has the rest."""

import warnings

import pytest
import torch
from torch import nn

from maxup.cuda.capture import _waits, reason_against

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
        ({"fixed_shapes": False}, "batches differ in size"),
        ({"accumulate": 4}, "accumulate is 4"),
        ({"precision": "fp16"}, "precision is fp16"),
    ],
)
def test_reasons(changes, reason):
    assert reason_against(nn.Linear(2, 2), **SAFE | changes) == reason


def test_dropout_speaks_against_it_unless_it_drops_nothing():
    assert reason_against(nn.Sequential(nn.Dropout(0.1)), **SAFE) == "active Dropout"
    assert reason_against(nn.Sequential(nn.Dropout(0.0)), **SAFE) == ""


@pytest.fixture
def device(monkeypatch):
    """The debug mode of a CUDA device, which warns once that it is a prototype, as torch has it."""
    modes = [0]

    def choose(mode):
        modes.append(mode)
        if mode == "warn" and modes.count("warn") == 1:
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all "
                          "synchronizing operations", stacklevel=2)  # fmt: skip

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", choose)
    return modes


def test_a_step_that_never_waits_is_not_accused_the_first_time(device):
    for _ in range(2):
        with _waits() as found:
            pass
        assert found == []
    assert device == [0, "warn", 0, "warn", 0]


def test_a_step_that_waits_is_noticed_and_other_warnings_are_heard(device):
    with warnings.catch_warnings(record=True, action="always") as heard, _waits() as found:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("mind the gap", stacklevel=1)
    assert found == ["called a synchronizing CUDA operation"]
    assert [str(w.message) for w in heard] == ["mind the gap"]


def test_the_mode_is_put_back_when_a_step_fails(device):
    with pytest.raises(ZeroDivisionError), _waits():
        raise ZeroDivisionError
    assert device[-1] == 0

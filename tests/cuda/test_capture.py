"""When a step cannot be captured, and how synchronization is detected. tests/gpu tests the capture itself."""

import warnings

import pytest
import torch
from torch import nn

from maxup.cuda.capture import _record_syncs, why_not_capturable

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
        with _record_syncs() as syncs:
            pass
        assert syncs == []
    assert device == [0, "warn", 0, "warn", 0]


def test_synchronization_is_recorded_and_other_warnings_pass(device):
    with warnings.catch_warnings(record=True, action="always") as passed, _record_syncs() as syncs:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("mind the gap", stacklevel=1)
    assert syncs == ["called a synchronizing CUDA operation"]
    assert [str(w.message) for w in passed] == ["mind the gap"]


def test_the_mode_is_restored_when_a_step_fails(device):
    with pytest.raises(ZeroDivisionError), _record_syncs():
        raise ZeroDivisionError
    assert device[-1] == 0

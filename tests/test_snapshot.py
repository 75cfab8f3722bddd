"""Snapshots show every kind of change, and nothing else."""

import random

import numpy as np
import pytest
import torch

from maxup.diagnostics.inputs import Inputs
from maxup.snapshot import changed
from maxup.snapshot import snapshot as snapshot_of
from tests.tiny import batch, batch_norm_net


def snapshot(case):
    return snapshot_of([case.model], {"forward": case.forward, "loss": case.loss_fn})


SEEN = {"calls": [], "count": 0}


def forward(model, x):
    return model(x) if SEEN else None


def touch_weight(case):
    with torch.no_grad():
        case.model[0].weight[0, 0, 0, 0] += 1


def touch_gradient(case):
    case.model[0].weight.grad = torch.zeros_like(case.model[0].weight)


def touch_flag(case):
    case.model[3].eval()


def touch_attribute(case):
    case.model[1].eps = 0.5


def touch_nested_global(case):
    SEEN["calls"].append(1)


CHANGES = {
    "parameter 'weight' of 0": touch_weight,
    "gradient of 'weight' of 0": touch_gradient,
    "buffer 'running_mean' of 1": lambda case: case.model[1].running_mean.add_(1),
    "training flag of 3": touch_flag,
    "attribute 'eps' of 1": touch_attribute,
    "global 'SEEN' of the forward function": touch_nested_global,
    "random state of torch": lambda case: torch.rand(1),
    "random state of Python": lambda case: random.random(),
    "random state of numpy": lambda case: np.random.rand(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_reported_and_nothing_else(name):
    case = Inputs(batch_norm_net(), batch(), forward=forward)
    before = snapshot(case)
    assert changed(before, snapshot(case)) == []
    CHANGES[name](case)
    assert changed(before, snapshot(case)) == [name]


def test_new_and_removed_attributes_are_reported():
    case = Inputs(batch_norm_net(), batch())
    before = snapshot(case)
    case.model.memory = [torch.ones(2)]
    after = snapshot(case)
    assert changed(before, after) == changed(after, before) == ["attribute 'memory' of Sequential"]


def test_nan_equals_itself():
    case = Inputs(batch_norm_net(), batch())
    case.model[1].running_mean.fill_(float("nan"))
    assert changed(snapshot(case), snapshot(case)) == []


def test_closure_variables_are_compared():
    count = 0

    def counting(model, x):
        nonlocal count
        count += 1
        return model(x)

    case = Inputs(batch_norm_net().eval(), batch(), forward=counting)
    before = snapshot(case)
    case.forward(case.model, case.batch[0])
    assert changed(before, snapshot(case)) == ["variable 'count' of the forward function"]

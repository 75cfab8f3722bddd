import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from maxup.lab.recipes.schema import Optim
from maxup.lab.train.optim import create_optimizer, learning_rate, lookahead, lookahead_decay, set_learning_rate


@pytest.mark.parametrize("epochs", [4, 10, 200])
def test_milestones_are_fractions_so_a_short_run_keeps_the_shape(epochs):
    """Against torch's own scheduler, epoch by epoch."""
    optim = Optim(lr=0.1, schedule="steps", milestones=[0.5, 0.75], gamma=0.1)
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=0.1)
    theirs = torch.optim.lr_scheduler.MultiStepLR(sgd, [math.ceil(epochs / 2), math.ceil(epochs * 3 / 4)], 0.1)
    for epoch in range(epochs):
        assert learning_rate(optim, epoch / epochs) == pytest.approx(theirs.get_last_lr()[0])
        weight.grad = torch.zeros(1)
        sgd.step()
        theirs.step()


def test_cosine_against_torch():
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 50)
    for step in range(50):
        assert learning_rate(Optim(lr=0.3, schedule="cosine"), step / 50) == pytest.approx(
            theirs.get_last_lr()[0], abs=1e-9
        )
        weight.grad = torch.zeros(1)
        sgd.step()
        theirs.step()


def test_warmup_rises_from_zero_and_constant_stays():
    optim = Optim(lr=1.0, schedule="constant", warmup=0.1)
    assert [round(learning_rate(optim, d), 6) for d in (0, 0.05, 0.1, 0.9)] == [0, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW), ("asgd", torch.optim.SGD)]
)
def test_optimizers_by_name(name, kind):
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = create_optimizer(model, Optim(name=name, lr=0.5, weight_decay=0.25))
    assert type(optimizer) is kind
    assert [len(g["params"]) for g in optimizer.param_groups] == [1]
    set_learning_rate(optimizer, 0.125)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.125, 0.25)


def test_a_rate_that_is_a_tensor_is_filled_in_place():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    set_learning_rate(optimizer, 0.25)
    assert rate.item() == 0.25


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter to train"):
        create_optimizer(nn.Linear(1, 1).requires_grad_(False), Optim())


def test_triangle_against_interpolation():
    optim = Optim(lr=2.0, schedule="triangle", peak=0.23, start_factor=0.2, end_factor=0.07)
    done = np.linspace(0, 1, 101)
    expected = 2 * np.interp(done, [0, 0.23, 1], [0.2, 1, 0.07])
    np.testing.assert_allclose([learning_rate(optim, d) for d in done], expected)


@pytest.mark.parametrize(("peak", "at_half"), [(0.0, 0.5), (1.0, 0.5)])
def test_a_triangle_may_only_fall_or_only_rise(peak, at_half):
    optim = Optim(lr=1.0, schedule="triangle", peak=peak)
    assert learning_rate(optim, 0.5) == at_half
    assert learning_rate(optim, peak) == 1.0
    assert learning_rate(optim, 1 - peak) == 0.0


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_of_norms_have_their_own_rate_and_the_same_decay(name):
    """Against one optimizer of torch per kind of parameter, over steps with a changing rate."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4))
    theirs = copy.deepcopy(model)
    optim = Optim(name=name, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02, bias_lr=8)
    mine = create_optimizer(model, optim)
    biases = [theirs[i].bias for i in (1, 3, 4)]
    others = [p for p in theirs.parameters() if all(p is not bias for bias in biases)]
    kind, more = (torch.optim.AdamW, {}) if name == "adamw" else (torch.optim.SGD, {"momentum": 0.9, "nesterov": True})
    split = kind(others, lr=0.1, weight_decay=0.02, **more), kind(biases, lr=0.8, weight_decay=0.0025, **more)
    for rate in (0.1, 0.05, 0.2):
        x = torch.randn(6, 3)
        for network in (model, theirs):
            network.zero_grad()
            network(x).pow(3).sum().backward()
        set_learning_rate(mine, rate)
        for part, factor in zip(split, (1, 8), strict=True):
            part.param_groups[0]["lr"] = rate * factor
            part.step()
        mine.step()
    for found, expected in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_rate_of_biases_needs_a_norm():
    with pytest.raises(ValueError, match=r"optim\.bias_lr is set, but the model has no normalization layer"):
        create_optimizer(nn.Linear(2, 2), Optim(bias_lr=2.0))
    frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
    with pytest.raises(ValueError, match=r"optim\.bias_lr is set"):
        create_optimizer(frozen, Optim(bias_lr=2.0))


def test_lookahead_moves_weights_and_statistics_to_the_average():
    slow, model = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    model(torch.randn(8, 3))
    model.bias.data.normal_()
    before = {name: (slow.state_dict()[name].clone(), value.clone()) for name, value in model.state_dict().items()}
    lookahead(slow, model, 0.25)
    for name, (old, new) in before.items():
        expected = new if name == "num_batches_tracked" else 0.25 * old + 0.75 * new
        torch.testing.assert_close(model.state_dict()[name], expected)
        if name != "num_batches_tracked":
            torch.testing.assert_close(slow.state_dict()[name], expected)
    assert [lookahead_decay(5, done) for done in (0, 0.5, 1)] == pytest.approx([0, 0.95**5 / 8, 0.95**5])

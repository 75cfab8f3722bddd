import math

import pytest
import torch
from torch import nn

from maxup.lab.recipes.schema import Optim
from maxup.lab.train.optim import create_optimizer, learning_rate, set_learning_rate


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

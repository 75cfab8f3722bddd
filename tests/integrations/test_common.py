"""What the integrations share, and the examples in their docstrings."""

import doctest
from importlib import import_module

import pytest
import torch

import maxup as mu
from maxup.integrations.common import check_generator, check_objective, defaults
from maxup.objectives.base import call_model
from tests.oracles import torchvision_v2


@pytest.mark.filterwarnings("ignore")  # warnings of the packages
@pytest.mark.parametrize(
    ("module", "package"),
    [("lightning", "pytorch_lightning"), ("transformers", "transformers"), ("timm", "timm"), ("batches", "torch")],
)
def test_examples(module, package):
    torchvision_v2()
    pytest.importorskip(package)
    assert doctest.testmod(import_module(f"maxup.integrations.{module}")).failed == 0


def loss(output, target):
    return (output - target).abs().mean(1)


def forward(model, x):
    return model(**x)


def test_defaults_are_replaced_and_restored():
    objective = mu.MaxUp(mu.Gaussian(0.1))
    with defaults(objective, loss_fn=loss, forward=forward):
        assert (objective.loss_fn, objective.forward) == (loss, forward)
    assert (objective.loss_fn, objective.forward) == (mu.cross_entropy, call_model)
    custom = mu.MaxUp(mu.Gaussian(0.1), loss_fn=loss, forward=forward)
    with defaults(custom, loss_fn=mu.token_cross_entropy, forward=print):
        assert (custom.loss_fn, custom.forward) == (loss, forward)


def test_objectives_that_do_not_select():
    with pytest.raises(TypeError, match=r"Task expects a MaxUp objective, but got Average\(.*; pass MaxUp\("):
        check_objective(mu.Average(mu.Gaussian(0.1), m=2), "Task")
    assert check_objective(objective := mu.MaxUp(mu.Gaussian(0.1)), "Task") is objective


def test_generator_in_several_processes():
    objective = mu.MaxUp(mu.Gaussian(0.1), generator=torch.Generator())
    check_generator(objective, "Task", 1)
    with pytest.raises(ValueError, match=r"one state for 2 processes, .*; create MaxUp without generator="):
        check_generator(objective, "Task", 2)
    check_generator(mu.MaxUp(mu.Gaussian(0.1)), "Task", 2)

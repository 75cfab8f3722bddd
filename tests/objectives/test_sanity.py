"""Warnings about models, losses and perturbations that MaxUp cannot work with."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import maxup as mu
from maxup import Gaussian, MaxUp
from tests.objectives.mlp import data, mlp


def test_random_numbers_that_depend_on_the_data_warn():
    """Drawn where x is positive, so a winner changes the random numbers of later examples."""

    class Jitter(nn.Module):
        def forward(self, x):
            noise = torch.zeros_like(x)
            noise[x > 0] = torch.rand(int((x > 0).sum()), dtype=x.dtype)
            return x + 3 * noise

    with pytest.warns(mu.MaxUpWarning, match="draws random numbers that depend on the data"):
        MaxUp(Gaussian(3.0), m=16).select(mlp(Jitter()), *data())


def test_a_loss_over_the_batch_warns():
    def contrastive(output, target):
        return F.cross_entropy(output @ output.T, torch.arange(len(output)), reduction="none")

    with pytest.warns(mu.MaxUpWarning, match="mixes the examples of a batch"):
        MaxUp(Gaussian(2.0), m=4, loss_fn=contrastive).select(mlp(nn.Identity()), *data())


@pytest.mark.filterwarnings("ignore:the losses of the winners")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_a_model_that_mixes_the_batch_warns(settings):
    class Center(nn.Module):
        def forward(self, x):
            return (x - x.mean(0)) / x.std(0)

    with pytest.warns(mu.MaxUpWarning, match="the losses of a copy alone change by .* together with other copies"):
        MaxUp(Gaussian(3.0), m=4, **settings)(mlp(Center()), *data())


@pytest.mark.filterwarnings("ignore:the losses of the winners")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_mixing_warns_even_if_all_losses_are_almost_equal(settings):
    """The losses of a new network hardly differ; what counts is how much the copies differ."""

    class Center(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    model = mlp(Center())
    with torch.no_grad():
        model[-1].weight *= 0.01
    with pytest.warns(mu.MaxUpWarning, match="together with other copies"):
        MaxUp(Gaussian(1.0), m=4, **settings)(model, *data())


def test_a_last_layer_of_zeros_warns_late():
    model, (x, y) = mlp(nn.Identity()), data()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    objective = MaxUp(Gaussian(0.3), m=4)
    for _ in range(7):
        objective(model, x, y)
    with pytest.warns(mu.MaxUpWarning, match="all 4 copies"):
        objective(model, x, y)


def test_a_network_that_fits_every_copy_does_not_warn():
    """Its cross-entropy is exactly 0. Warnings are errors here."""
    model, x = nn.Linear(4, 2), torch.ones(6, 4)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[500.0] * 4, [-500.0] * 4]))
    objective = MaxUp(Gaussian(0.1), m=4)
    for _ in range(12):
        assert objective(model, x, torch.zeros(6, dtype=torch.long)).item() == 0

"""A small network with dropout layers and a batch for it, for the tests of wide passes."""

import torch
from torch import nn

B, D, C = 6, 5, 4


def mlp(*dropouts):
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(D, D), nn.Tanh(), dropout) for dropout in dropouts]
    return nn.Sequential(*layers, nn.Linear(D, C)).double()


def data():
    g = torch.Generator().manual_seed(1)
    return torch.rand(B, D, generator=g, dtype=torch.double), torch.randint(C, (B,), generator=g)

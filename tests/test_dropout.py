"""A drop probability is an attribute of a module or its class, a property, or made by its `__getattr__`."""

import pytest
from torch import nn

from maxup.dropout import drop_probability


class ClassAttribute(nn.Module):
    drop_rate = 0.2


class Property(nn.Module):
    @property
    def drop_prob(self):
        return 0.3


class Delegates(nn.Module):
    def __getattr__(self, name):
        return 0.4 if name == "drop_prob" else super().__getattr__(name)


class StochasticDepth(nn.Module):
    p = 0.5


class NoDropout(nn.Module):
    p = 0.6
    drop_rate = "linear"


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (ClassAttribute(), 0.2), (Property(), 0.3), (Delegates(), 0.4), (StochasticDepth(), 0.5), (NoDropout(), 0.0),
        (nn.Dropout(0.7), 0.7), (nn.LSTM(2, 2, 2, dropout=0.8), 0.8), (nn.MultiheadAttention(2, 1, 0.9), 0.9),
        (nn.Linear(2, 2), 0.0),
    ],
)  # fmt: skip
def test_drop_probability(module, expected):
    assert drop_probability(module) == expected

"""Copies in one wide pass share dropout masks: winners and gradients equal those of one pass per copy."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from maxup import Gaussian, MaxUp
from maxup.objectives.shared_masks import RecordRandomOps, shared_masks
from tests.objectives.mlp import B, C, D, data, mlp


class DropPath(nn.Module):
    """Per-example stochastic depth as timm (bernoulli_) and Hugging Face (rand) write it."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        if self.way == "timm":
            return x * x.new_empty(len(x), 1).bernoulli_(0.7)
        return x * (0.7 + torch.rand((len(x), 1), dtype=x.dtype)).floor()


class LayerDrop(nn.Module):
    def forward(self, x):
        return x if torch.rand([]) < 0.5 else 2 * x


class DropConnect(nn.Module):
    """Masks weights whose first dimension equals a wide batch of 2 copies: still one mask per pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2 * B, D, dtype=torch.double))

    def forward(self, x):
        return x @ F.dropout(self.weight, 0.5).T @ self.weight


MODELS = {
    "dropout": lambda: mlp(nn.Dropout(0.5), nn.Dropout(0.2)),
    "alpha": lambda: mlp(nn.AlphaDropout(0.5)),
    "timm's drop path": lambda: mlp(DropPath("timm")),
    "Hugging Face's drop path": lambda: mlp(DropPath("transformers")),
    "layer drop": lambda: mlp(LayerDrop(), nn.Dropout(0.5)),
    "drop connect": lambda: mlp(DropConnect(), nn.Dropout(0.5)),
    "no dropout": lambda: mlp(nn.Identity()),
}


def reference(model, x, y, m, sigma):
    """One pass per copy from the same random state, and the gradient of the mean of the maxima."""
    state, generator = torch.get_rng_state(), torch.Generator().manual_seed(0)
    losses = []
    for _ in range(m):
        copy_x = x + sigma * torch.empty_like(x).normal_(generator=generator)
        torch.set_rng_state(state)
        losses.append(F.cross_entropy(model(copy_x), y, reduction="none"))
    losses = torch.stack(losses)
    losses.max(0).values.mean().backward()
    return losses.argmax(0), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("settings", [{"chunk_size": 2}, {"chunk_size": 4}, {"strategy": "retain"}, {}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_wide_passes_have_the_winners_and_gradients_of_one_pass_per_copy(name, settings):
    model, (x, y) = MODELS[name](), data()
    clone = copy.deepcopy(model)
    torch.manual_seed(7)
    winner, gradients = reference(clone, x, y, 4, 0.3)
    after = torch.get_rng_state()
    for _ in range(2):  # the second time, the pass over one copy is known
        torch.manual_seed(7)
        model.zero_grad()
        outcome = MaxUp(Gaussian(0.3), m=4, generator=torch.Generator().manual_seed(0), **settings).run(model, x, y)
        outcome.loss.backward()
        assert torch.equal(outcome.worst.copy, winner)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.filterwarnings("ignore:all 4 copies")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_identical_copies_tie(settings):
    """If the masks of the copies differed, MaxUp would choose among masks."""
    report = MaxUp(Gaussian(0), m=4, **settings).run(mlp(nn.Dropout(0.1)), *data()).report
    assert report.wins == [B, 0, 0, 0]
    assert report.replay_error < 1e-12


def test_masks_can_be_part_of_the_maximum():
    model, (x, y) = mlp(nn.Dropout(0.5)), data()
    report = MaxUp(Gaussian(0), m=4, strategy="retain", masks="independent").run(model, x, y).report
    assert report.wins != [B, 0, 0, 0]
    assert report.gap > 0
    with pytest.raises(ValueError, match="masks='independent' needs strategy='retain'"):
        MaxUp(Gaussian(0), masks="independent")


class Attention(nn.Module):
    """Attention draws masks for examples and heads at once, (B * heads, T, T)."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, D, dropout=0.5)
        self.head = nn.Linear(D, C)

    def forward(self, x):
        x = x[None].expand(3, -1, -1)
        return self.head(self.attention(x, x, x)[0].mean(0))


@pytest.mark.parametrize(
    ("settings", "instead"),
    [({"chunk_size": 2}, "use chunk_size=1"), ({"strategy": "retain"}, "use strategy='recompute'")],
)
def test_masks_that_cannot_be_shared_raise(settings, instead):
    model, (x, y) = Attention().double(), data()
    with pytest.raises(ValueError, match=f"which the copies cannot share; {instead}"):
        MaxUp(Gaussian(0.1), m=4, **settings)(model, x, y)
    assert MaxUp(Gaussian(0.1), m=4).run(model, x, y).report.replay_error < 1e-12


def test_a_pass_that_draws_more_than_one_copy_raises():
    with RecordRandomOps() as recorded:
        torch.rand(B)
    with shared_masks(recorded.operations, 2, B, "use chunk_size=1"):
        torch.rand(2 * B)
        with pytest.raises(ValueError, match="cannot share; use chunk_size=1"):
            torch.rand(2 * B)


def test_operations_that_draw_nothing_are_not_recorded():
    with RecordRandomOps() as recorded:
        F.dropout(torch.ones(B, D), 0.0)
        F.dropout(torch.ones(B, D), 0.5, training=False)
        torch.rand(B, generator=torch.Generator())
    assert recorded.operations == []


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = mlp(nn.Dropout(0.3)), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_raises_in_a_wide_training_pass(reentrant):
    """The backward pass would draw different masks for the copies."""
    model, (x, y) = Checkpointed(reentrant), data()
    with pytest.raises(ValueError, match=r"activation checkpointing repeats .* use strategy='recompute'"):
        MaxUp(Gaussian(0.1), m=4, strategy="retain")(model, x.requires_grad_(), y)
    MaxUp(Gaussian(0.1), m=4, chunk_size=4)(model, x, y).backward()


@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_operations_that_are_not_fills_raise(settings, inplace):
    with pytest.raises(ValueError, match=r"rrelu.* which the copies cannot share"):
        MaxUp(Gaussian(0.3), m=4, **settings)(mlp(nn.RReLU(inplace=inplace)), *data())

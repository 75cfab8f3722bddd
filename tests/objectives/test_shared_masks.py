"""Copies in one wide pass share dropout masks: winners and gradients are those of one pass per copy."""

import copy
import pickle
import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import maxup as mu
from maxup import Gaussian, MaxUp
from maxup.objectives.shared_masks import record, shared_masks

B, D, C = 6, 5, 4


def mlp(*dropouts):
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(D, D), nn.Tanh(), dropout) for dropout in dropouts]
    return nn.Sequential(*layers, nn.Linear(D, C)).double()


def data():
    g = torch.Generator().manual_seed(1)
    return torch.rand(B, D, generator=g, dtype=torch.double), torch.randint(C, (B,), generator=g)


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
    """A mask of weights whose first dimension is that of a wide batch of 2 copies: it is still one mask per pass."""

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
    """One pass per copy, the stream rewound before each; the gradient of the mean of the maxima."""
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
def test_wide_passes_choose_and_learn_what_one_pass_per_copy_does(name, settings):
    model, (x, y) = MODELS[name](), data()
    twin = copy.deepcopy(model)
    torch.manual_seed(7)
    winner, gradients = reference(twin, x, y, 4, 0.3)
    after = torch.get_rng_state()
    for _ in range(2):  # the second time, what one copy draws is known
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
    """Masks that differed between copies would choose among masks."""
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
    """Attention draws masks by example and head at once, (B * heads, T, T)."""

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
def test_masks_that_cannot_be_shared_are_refused(settings, instead):
    model, (x, y) = Attention().double(), data()
    with pytest.raises(ValueError, match=f"which the copies cannot share; {instead}"):
        MaxUp(Gaussian(0.1), m=4, **settings)(model, x, y)
    assert MaxUp(Gaussian(0.1), m=4).run(model, x, y).report.replay_error < 1e-12


def test_random_numbers_that_depend_on_the_data_are_told():
    """Drawn where x is positive: winners of other copies move the numbers of the examples behind them."""

    class Jitter(nn.Module):
        def forward(self, x):
            noise = torch.zeros_like(x)
            noise[x > 0] = torch.rand(int((x > 0).sum()), dtype=x.dtype)
            return x + 3 * noise

    with pytest.warns(mu.MaxUpWarning, match="draws random numbers that depend on the data"):
        MaxUp(Gaussian(3.0), m=16).select(mlp(Jitter()), *data())


def test_a_loss_over_the_batch_is_told():
    def contrastive(output, target):
        return F.cross_entropy(output @ output.T, torch.arange(len(output)), reduction="none")

    with pytest.warns(mu.MaxUpWarning, match="mixes the examples of a batch"):
        MaxUp(Gaussian(2.0), m=4, loss_fn=contrastive).select(mlp(nn.Identity()), *data())


def test_a_pass_that_draws_more_than_one_copy_did_is_refused():
    with record() as recorded:
        torch.rand(B)
    with shared_masks(recorded.operations, 2, B, "do otherwise"):
        torch.rand(2 * B)
        with pytest.raises(ValueError, match="cannot share; do otherwise"):
            torch.rand(2 * B)


def test_operations_that_draw_nothing_are_not_recorded():
    with record() as recorded:
        F.dropout(torch.ones(B, D), 0.0)
        F.dropout(torch.ones(B, D), 0.5, training=False)
        torch.rand(B, generator=torch.Generator())
    assert recorded.operations == []


def test_the_wide_pass_leaves_buffers_as_one_pass_does():
    """Looking at what one copy draws must not count as a pass."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x

    model = mlp(nn.Dropout(0.5), Counter())
    mu.MaxUp(Gaussian(0.1), m=3, strategy="retain")(model, *data())
    assert model[1][2].calls == 1


# --- what changes after the first batch, and what no record can see


@pytest.mark.filterwarnings("ignore:all 4 copies")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
@pytest.mark.parametrize("change", ["rate", "mode", "model"])
def test_dropout_that_begins_later_is_shared_too(settings, change):
    model, (x, y) = mlp(nn.Dropout(0.0 if change == "rate" else 0.5)), data()
    if change == "mode":
        model[0].eval()
    maxup = MaxUp(Gaussian(0), m=4, **settings)
    if change == "model":
        maxup(mlp(nn.Identity()), x, y)
    else:
        maxup(model, x, y)
    model.train()
    model[0][2].p = 0.5
    report = maxup.run(model, x, y).report
    assert report.wins == [B, 0, 0, 0]
    assert report.replay_error < 1e-12


@pytest.mark.parametrize("source", ["numpy", "Python"])
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_masks_of_other_streams_are_refused(source, settings):
    class Mask(nn.Module):
        def forward(self, x):
            if source == "numpy":
                return x * torch.from_numpy(numpy.random.rand(*x.shape))
            return x * torch.tensor([[random.random() for _ in row] for row in x], dtype=x.dtype)

    with pytest.raises(ValueError, match="draws random numbers that the copies cannot share"):
        MaxUp(Gaussian(0.1), m=4, **settings)(mlp(Mask()), *data())


def test_a_decision_per_pass_from_another_stream_is_shared():
    class Skip(nn.Module):
        def forward(self, x):
            return x if random.random() < 0.5 else -x

    report = MaxUp(Gaussian(0.1), m=4, chunk_size=4).run(mlp(Skip()), *data()).report
    assert report.replay_error < 1e-12


@pytest.mark.filterwarnings("ignore:the losses of the winners")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_a_model_that_mixes_its_batch_is_told(settings):
    class Center(nn.Module):
        def forward(self, x):
            return (x - x.mean(0)) / x.std(0)

    with pytest.warns(mu.MaxUpWarning, match="the losses of a copy alone change by .* together with other copies"):
        MaxUp(Gaussian(3.0), m=4, **settings)(mlp(Center()), *data())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = mlp(nn.Dropout(0.3)), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_is_refused_in_a_wide_training_pass(reentrant):
    """The backward pass would draw masks that the copies do not share."""
    model, (x, y) = Checkpointed(reentrant), data()
    with pytest.raises(ValueError, match=r"activation checkpointing repeats .* use strategy='recompute'"):
        MaxUp(Gaussian(0.1), m=4, strategy="retain")(model, x.requires_grad_(), y)
    MaxUp(Gaussian(0.1), m=4, chunk_size=4)(model, x, y).backward()


def test_a_compiled_model_stays_compiled():
    """A dispatch mode would make dynamo run it eagerly from then on."""
    runs = []

    def backend(graph, inputs):
        return lambda *args: runs.append(1) or graph(*args)

    model = torch.compile(nn.Sequential(nn.Linear(D, D), nn.Linear(D, C)).double(), backend=backend)
    maxup = MaxUp(Gaussian(0.3), m=4, chunk_size=4)
    for _ in range(2):
        runs.clear()
        maxup(model, *data()).backward()
        assert runs
    dropping = torch.compile(mlp(nn.Dropout(0.5)), backend="eager")
    with pytest.raises(ValueError, match=r"a compiled model draws random numbers, .* use chunk_size=1"):
        MaxUp(Gaussian(0.3), m=4, chunk_size=4)(dropping, *data())


def test_a_last_layer_of_zeros_is_no_tie():
    model, (x, y) = mlp(nn.Identity()), data()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    maxup = MaxUp(Gaussian(0.3), m=4)
    for _ in range(7):
        maxup(model, x, y)
    with pytest.warns(mu.MaxUpWarning, match="all 4 copies"):
        maxup(model, x, y)


@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_operations_that_are_not_fills_are_refused(settings, inplace):
    with pytest.raises(ValueError, match=r"rrelu.* which the copies cannot share"):
        MaxUp(Gaussian(0.3), m=4, **settings)(mlp(nn.RReLU(inplace=inplace)), *data())


def test_a_failed_wide_pass_can_be_tried_again():
    model, (x, y) = mlp(nn.Identity()), data()
    fail = [False, True]
    handle = model.register_forward_hook(lambda *_: 1 / 0 if fail and fail.pop(0) else None)
    maxup = MaxUp(Gaussian(0.3), m=4, chunk_size=4)
    with pytest.raises(ZeroDivisionError):
        maxup(model, x, y)
    handle.remove()
    torch.rand(3)
    maxup(model, x, y)


def test_an_objective_can_be_pickled_after_a_wide_pass():
    maxup, (x, y) = MaxUp(Gaussian(0.3), m=4, chunk_size=4, generator=torch.Generator().manual_seed(0)), data()
    model = mlp(nn.Dropout(0.5))
    maxup(model, x, y)
    again = copy.deepcopy(maxup)
    assert again.chunk_size == 4
    assert maxup._wide.known
    assert pickle.loads(pickle.dumps(maxup._wide)).known == {}


@pytest.mark.filterwarnings("ignore:the losses of the winners")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_mixing_is_told_when_all_losses_are_near_their_start(settings):
    """The losses of a fresh network hardly differ; what counts is how much the copies do."""

    class Center(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    model = mlp(Center())
    with torch.no_grad():
        model[-1].weight *= 0.01
    with pytest.warns(mu.MaxUpWarning, match="together with other copies"):
        MaxUp(Gaussian(1.0), m=4, **settings)(model, *data())

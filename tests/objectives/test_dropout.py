"""`MaxUp(dropout=False)`: copies are scored without dropout, and trained with it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import EmbeddingDropout, FeatureNoise, Gaussian, MaxUp
from maxup.dropout import has_dropout, without_dropout
from maxup.integrations.torchvision import import_torchvision


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True), nn.ReLU(),
        nn.Dropout2d(0.5), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 5),
    )  # fmt: skip


def make(**settings):
    return MaxUp(Gaussian(1.0), m=4, generator=torch.Generator().manual_seed(3), **settings)


def test_winners_are_those_of_a_slow_loop_without_dropout(model, batch):
    outcome = make(dropout=False).run(model, *batch)
    noise, g, losses = Gaussian(1.0), torch.Generator().manual_seed(3), []
    for _ in range(4):
        x, y = noise.apply(batch, noise.draw(batch, g))
        one = copy.deepcopy(model)  # norms in training mode
        one[4].eval(), one[7].eval()
        with torch.no_grad():
            losses.append(F.cross_entropy(one(x), y, reduction="none"))
    losses = torch.stack(losses)
    assert torch.equal(outcome.worst.copy, losses.argmax(0))
    assert torch.allclose(torch.stack(outcome.worst.losses), losses, atol=1e-6)
    assert not torch.equal(outcome.worst.copy, make().run(model, *batch).worst.copy)


def test_the_training_pass_has_the_masks_of_a_bare_step(model, batch):
    objective, bare = make(dropout=False), copy.deepcopy(model)
    torch.manual_seed(7)
    outcome = objective.run(model, *batch)
    outcome.loss.backward()
    x, y = Gaussian(1.0).apply(batch, outcome.worst.draw)
    torch.manual_seed(7)
    F.cross_entropy(bare(x), y).backward()
    for a, b in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(model.buffers(), bare.buffers(), strict=True):
        assert torch.equal(a, b)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"chunk_size": 4, "compile": True}, {"compile": True}])
def test_wide_and_compiled_passes_select_the_same(model, batch, settings, monkeypatch):
    monkeypatch.setattr("maxup.scoring._inductor", lambda graph, inputs, config: graph)  # faster
    model[2] = nn.Identity()
    expected = make(dropout=False, norm="running").run(model, *batch).worst.copy
    compiled = torch.compile(model, backend="eager")  # its dropout would not allow wide passes
    for scored in (model, compiled):
        found = make(dropout=False, norm="running", **settings).run(scored, *batch).worst.copy
        assert torch.equal(found, expected)


def test_modes_are_restored_after_an_error(model, batch):
    model.register_forward_pre_hook(lambda module, inputs: 1 / (not model[7].training and 0))
    with pytest.raises(ZeroDivisionError):
        make(dropout=False).select(model, *batch)
    assert all(module.training for module in model.modules())


def test_recurrent_layers_stay_in_training_mode():
    """cuDNN computes no gradients of a recurrent layer in evaluation mode, and a shortlist needs them."""
    model = nn.Sequential(nn.LSTM(3, 4, 2, dropout=0.5))
    with without_dropout(model):
        assert (model[0].training, model[0].dropout) == (True, 0.0)
    assert (model[0].training, model[0].dropout) == (True, 0.5)


def test_frozen_dropout_stays_off(model, batch):
    model[4].eval()
    make(dropout=False).run(model, *batch)
    assert [layer.training for layer in model] == [layer is not model[4] for layer in model]


class Attention(nn.Module):
    """As attention layers of Hugging Face: the probability of a layer, or a number, for a fused function."""

    def __init__(self, layer):
        super().__init__()
        self.attention_dropout = nn.Dropout(0.5) if layer else 0.5

    def forward(self, x):
        p = getattr(self.attention_dropout, "p", self.attention_dropout)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p if self.training else 0.0)


def vit():
    import_torchvision()
    timm = pytest.importorskip("timm")
    return timm.create_model("test_vit", drop_path_rate=0.5, proj_drop_rate=0.5), torch.randn(4, 3, 160, 160)


def convnext():
    torchvision = import_torchvision()
    setting = torchvision.models.convnext.CNBlockConfig(8, None, 2)
    return torchvision.models.ConvNeXt([setting], stochastic_depth_prob=0.5), torch.randn(4, 3, 32, 32)


def bert():
    import_torchvision()
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    return BertForSequenceClassification(config), torch.randint(50, (4, 6))


CASES = {
    "transformer": lambda: (
        nn.Sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True), 2)),
        torch.randn(4, 6, 8),
    ),
    "lstm": lambda: (nn.Sequential(nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)), torch.randn(4, 6, 8)),
    "attention": lambda: (nn.Sequential(Attention(layer=True), Attention(layer=False)), torch.randn(4, 2, 6, 8)),
    "vision transformer": vit,
    "stochastic depth": convnext,
    "bert": bert,
}


@pytest.mark.parametrize("name", CASES)
def test_layers_of_every_kind_draw_no_random_numbers(name):
    model, x = CASES[name]()
    model.train()
    before = torch.get_rng_state()
    with torch.no_grad(), without_dropout(model):
        model(x)
        assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        model(x)
    assert not torch.equal(torch.get_rng_state(), before)


def test_perturbations_inside_the_model_stay_active():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 4))
    words = EmbeddingDropout(0.5, layer="0")
    words.attach(model)
    worst = MaxUp(words, m=4, dropout=False).run(model, torch.randint(20, (8, 6)), torch.randint(4, (8,))).worst
    losses = torch.stack(worst.losses)
    assert (losses.max(0).values > losses.min(0).values).all()


class Auxiliary(nn.Module):
    """Returns something else in evaluation, as GoogLeNet does."""

    def __init__(self):
        super().__init__()
        self.head, self.dropout = nn.Linear(192, 5), nn.Dropout(0.5)

    def forward(self, x):
        out = self.head(self.dropout(x.flatten(1)))
        return (out, out) if self.training else out


@pytest.mark.parametrize("wrap", [lambda m: m, nn.Sequential, lambda m: torch.compile(m, backend="eager")])
def test_models_that_return_something_else_in_evaluation_stay_in_training_mode(batch, wrap):
    model = Auxiliary()
    objective = make(dropout=False, forward=lambda model, x: model(x)[0])
    winners = objective.select(wrap(model), *batch)[0]
    _, y = batch
    noise, g, losses, copies = Gaussian(1.0), torch.Generator().manual_seed(3), [], []
    for _ in range(4):
        copies.append(noise.apply(batch, noise.draw(batch, g))[0])
        losses.append(F.cross_entropy(model.head(copies[-1].flatten(1)), y, reduction="none"))
    worst = torch.stack(losses).argmax(0)
    assert torch.equal(winners, torch.stack(copies)[worst, torch.arange(16)])


class Lora(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.flip(-1).repeat(1, 1, self.out_features // self.in_features)


class Block(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return super()._ff_block(x) + x.flip(-1)


class Padded(nn.Module):
    """Reads all positions of an encoder, padding included."""

    def __init__(self, layer=nn.TransformerEncoderLayer):
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(8, 2, 16, 0.5, batch_first=True), 2)
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        pad = torch.arange(6) >= torch.tensor([[6], [5], [4], [3]]).repeat(len(x) // 4, 1)
        return self.head(self.encoder(x, src_key_padding_mask=pad).flatten(1))


def with_lora():
    model = Padded()
    for layer in model.encoder.layers:
        layer.linear1 = Lora(8, 16)
    return model


ENCODERS = {"padding": Padded, "subclass": lambda: Padded(Block), "lora": with_lora}


@pytest.mark.parametrize("chunk_size", [1, 2])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_are_scored_as_in_training(name, chunk_size):
    """In evaluation, torch has a fast path for them, which computes another function."""
    torch.manual_seed(0)
    model, x, y = ENCODERS[name](), torch.randn(4, 6, 8), torch.tensor([0, 1, 2, 0])
    worst = make(dropout=False, chunk_size=chunk_size).run(model, x, y).worst
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    expected = make().run(model, x, y).worst  # exact, without dropout
    assert torch.equal(worst.copy, expected.copy)
    assert torch.allclose(torch.stack(worst.losses), torch.stack(expected.losses), atol=1e-5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_padded_encoder_with_noise_inside_it_can_be_scored(dtype):
    noise = FeatureNoise(0.5, layer="encoder.layers.0")
    model = noise.attach(Padded())
    model.encoder.layers[1].dropout.p = 0.0
    objective = MaxUp(noise, m=4, dropout=False, dtype=dtype)
    loss = objective(model, torch.randn(4, 6, 8), torch.tensor([0, 1, 2, 0]))
    assert torch.isfinite(loss)
    assert torch.backends.mha.get_fastpath_enabled()


def test_names_of_settings_are_not_probabilities():
    layer = nn.Linear(2, 2)
    layer.drop_last, layer.dropout_mode = True, "row"
    assert not has_dropout(layer)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dropout": 0.1}, TypeError, "dropout=0.1: dropout must be True or False"),
        ({"dropout": False, "strategy": "retain"}, ValueError, "dropout=False needs strategy='recompute'"),
        ({"dropout": False, "strategy": "auto"}, ValueError, "dropout=False needs strategy='recompute'"),
    ],
)
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=message):
        MaxUp(Gaussian(1.0), **settings)


class Skip(nn.Module):
    """Stochastic depth, as in timm."""

    def __init__(self):
        super().__init__()
        self.drop_prob = 0.5

    def forward(self, x):
        return F.dropout(x, self.drop_prob, self.training)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout, self.linear = 0.5, nn.Linear(8, 8)

    def forward(self, x):
        return F.dropout(self.linear(x), self.dropout, self.training)


@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize("kind", ["lstm", "attention", "drop path", "part of another"])
def test_dropout_of_single_layers_that_forward_calls_is_off(kind, chunk_size):
    torch.manual_seed(0)
    body, last, x, y = nn.Linear(6, 8), nn.Linear(8, 3), torch.rand(5, 4, 6), torch.randint(3, (5,))
    lstm, attention = (
        nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True),
        nn.MultiheadAttention(8, 2, 0.5, batch_first=True),
    )
    skip, whole = Skip(), nn.Sequential(Dropping(), nn.Linear(8, 8))
    part = whole[0]
    forwards = {
        "lstm": lambda model, x: last(lstm(model(x))[0].mean(1)),
        "attention": lambda model, x: last(attention(*[model(x)] * 3)[0].mean(1)),
        "drop path": lambda model, x: last(skip(model(x)).mean(1)),
        "part of another": lambda model, x: last(whole[1](part(model(x)) + 0 * whole(model(x))).mean(1)),
    }

    def scores():
        objective = make(dropout=False, chunk_size=chunk_size, forward=forwards[kind])
        return torch.stack(list(objective.run(body, x, y).worst.losses))

    found = scores()
    for module in (lstm, attention, skip, whole):
        module.eval()
    lstm.dropout = 0.0
    torch.testing.assert_close(found, scores())


def test_dropout_of_modules_that_forward_calls_is_off():
    body, head, last, modes = nn.Linear(6, 8), nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3)), nn.Dropout(0.5), []

    def forward(model, x):
        modes.append((head[0].training, last.training))
        return last(head(model(x)))

    make(dropout=False, forward=forward)(body, torch.rand(4, 6), torch.randint(3, (4,)))
    assert modes[-1] == (True, True)
    assert set(modes[:-1]) == {(False, False)}
    assert head.training
    assert head[0].training
    assert last.training

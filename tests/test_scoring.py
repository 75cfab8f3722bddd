"""`MaxUp(compile=True)`: the winners are those of eager scoring."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import FeatureNoise, Gaussian, MaxUp, scoring
from maxup.lab.models import create_model
from tests.tiny import Function, conv


@pytest.fixture(autouse=True)
def no_inductor(request, monkeypatch):
    """Run traced graphs eagerly: tracing and rewriting are ours, inductor is torch's."""
    torch._dynamo.reset()
    if "slow" not in request.keywords:
        monkeypatch.setattr(scoring, "_inductor", lambda graph, inputs, config: graph)


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("chunk_size", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_winners_and_gradients_are_those_of_eager_scoring(norm, chunk_size, dropout):
    if chunk_size > 1 and (norm == "batch" or dropout):
        pytest.skip("wide passes need running statistics, and a compiled one cannot share dropout masks")
    x, y = torch.randn(6, 3, 8, 8), torch.randint(5, (6,))
    found = []
    for compile in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(256, 5)
        )
        generator = torch.Generator().manual_seed(0)
        objective = MaxUp(Gaussian(1.0), m=4, norm=norm, chunk_size=chunk_size, compile=compile, generator=generator)
        for _ in range(2):
            outcome = objective.run(model, x, y)
            outcome.loss.backward()
        state = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        found.append([outcome.worst.copy, *state])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_models_that_are_compiled_already(monkeypatch):
    """torch.compile(model), model.compile() and a compiled block: scoring compiles the model inside."""
    configs = []

    def inductor(graph, inputs, config):
        configs.append((config, torch.is_grad_enabled()))
        return graph

    monkeypatch.setattr(scoring, "_inductor", inductor)

    def make():
        torch.manual_seed(0)
        return Function(lambda m, x: m.head(F.relu(m.body(x))), body=nn.Linear(4, 8), head=nn.Linear(8, 3))

    def in_place(model, part):
        part.compile(backend="eager")
        return model

    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    models = [make(), torch.compile(make(), backend="eager"), *(in_place(m, m) for m in [make()])]
    models += [in_place(m, m.body) for m in [make()]]
    winners = []
    for model in models:
        configs.clear()
        before = [module._compiled_call_impl for module in model.modules()]
        outcome = MaxUp(Gaussian(1.0), m=4, compile=True, generator=torch.Generator().manual_seed(0)).run(model, x, y)
        is_eager = model in (models[0], models[3])  # a compiled block does not make the model's masks inductor's
        assert configs == [({"fallback_random": is_eager}, False)]
        assert [module._compiled_call_impl for module in model.modules()] == before
        winners.append(outcome.worst.copy)
    for found in winners:
        assert torch.equal(found, winners[0])


def test_masks_of_a_model_with_compiled_parts_cannot_be_shared():
    model = Function(
        lambda m, x: m.head(m.drop(m.body(x))), body=nn.Linear(4, 8), drop=nn.Dropout(0.5), head=nn.Linear(8, 3)
    )
    model.body.compile(backend="eager")
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with pytest.raises(ValueError, match=r"only parts are compiled; use torch\.compile"):
        MaxUp(Gaussian(1.0), m=4, compile=True)(model, x, y)


def test_a_hook_that_is_registered_later_is_seen():
    model = Function(lambda m, x: m.head(m.body(x)), body=nn.Linear(4, 8), head=nn.Linear(8, 3))
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    objective = MaxUp(Gaussian(1.0), m=4, compile=True)
    objective(model, x, y)
    model.body.register_forward_hook(lambda module, inputs, output: 3 * output)
    assert objective.run(model, x, y).report.replay_error < 1e-5


def test_forward_gets_the_model_itself():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    seen = []

    def forward(m, x):
        seen.append(m)
        return m[1](m[0](x))

    objective = MaxUp(Gaussian(1.0), m=2, compile=True, forward=forward)
    objective(model, torch.randn(6, 4), torch.randint(3, (6,)))
    assert all(m is model for m in seen)


def test_torchscript_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(nn.Linear(4, 3))
    with pytest.raises(ValueError, match="compile=True cannot compile a TorchScript model"):
        MaxUp(Gaussian(1.0), m=2, compile=True)(model, torch.randn(6, 4), torch.randint(3, (6,)))


def test_in_model_perturbations():
    torch.manual_seed(0)
    noise = FeatureNoise(1.0, layer="body")
    model = Function(lambda m, x: m.head(m.body(x)), body=nn.Linear(4, 8), head=nn.Linear(8, 3))
    model = noise.attach(model)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    copies = []
    for compile in (False, True):
        objective = MaxUp(noise, m=4, compile=compile, generator=torch.Generator().manual_seed(0))
        copies.append(objective.run(model, x, y).worst.copy)
    assert torch.equal(*copies)
    assert copies[0].unique().numel() > 1


def test_another_model_is_compiled_anew_and_copies_forget_it():
    objective = MaxUp(Gaussian(1.0), m=2, compile=True)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    for model in (nn.Linear(4, 3), nn.Linear(4, 3)):
        objective(model, x, y)
        assert objective._compiler.model is model
    assert pickle.loads(pickle.dumps(objective))._compiler.compiled is None
    assert copy.deepcopy(objective)._compiler.compiled is None
    assert "compile=True" in repr(objective)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"compile": 1}, TypeError, "compile=1: compile must be True or False"),
        (
            {"compile": True, "strategy": "retain"},
            ValueError,
            "compile=True needs strategy='recompute'",
        ),
    ],
)
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=message):
        MaxUp(Gaussian(1.0), **settings)


@pytest.mark.slow
def test_inductor():
    torch.manual_seed(0)
    model = create_model("resnet20", shape=(3, 16, 16), num_classes=5)
    x, y = torch.randn(8, 3, 16, 16), torch.randint(5, (8,))
    copies = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inductor
        for compile in (False, True):
            objective = MaxUp(Gaussian(1.0), m=4, compile=compile, generator=torch.Generator().manual_seed(0))
            copies.append(objective.run(model, x, y).worst.copy)
    assert torch.equal(*copies)


def test_objectives_do_not_share_the_limit_of_variants(monkeypatch):
    """Dynamo counts variants per code object. With a shared one, the scoring of later objectives would run eagerly."""
    compiled = []
    monkeypatch.setattr(scoring, "_inductor", lambda graph, inputs, config: compiled.append(1) or graph)
    monkeypatch.setattr(scoring, "VARIANTS", 1)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # torch 2.6
    with torch._dynamo.config.patch({limit: 2}):
        for _ in range(5):
            model = nn.Sequential(nn.Linear(4, 3))
            MaxUp(Gaussian(0.1), m=2, compile=True)(model, torch.randn(6, 4), torch.randint(3, (6,)))
    assert len(compiled) == 5

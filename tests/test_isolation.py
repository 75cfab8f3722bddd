"""Selecting restores the model and the global random states, even when something raises."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn

import maxup as mu
from maxup.isolation import preserve_state
from tests.tiny import CLASSES, SIZE, B, C, batch, batch_norm_net, generator, net


class Awkward(nn.Module):
    """Every kind of side effect: BatchNorm, InstanceNorm with statistics, spectral norm, a counter, a replaced buffer,
    dropout, random numbers from Python and numpy, a training flag changed in forward."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(C, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None),
            nn.InstanceNorm2d(4, track_running_stats=True), nn.Dropout(0.5), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(4 * (SIZE - 2) ** 2, CLASSES))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("later", None)
        self.body[1].register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.body[1].seen += 1
        self.later = x.mean()
        self.last = x.mean()
        self.body[4].train(not self.body[4].training)
        scale = random.random() + numpy.random.rand() + float(torch.rand(()))
        out = self.head(self.body(x)) * scale
        self.body[4].train(not self.body[4].training)
        return out


def snapshot(model):
    return {
        "values": {k: v.clone() for k, v in model.state_dict().items()},
        "identity": {(n, k): id(v) for n, m in model.named_modules() for k, v in m._buffers.items()},
        "flags": [m.training for m in model.modules()],
        "tracking": [getattr(m, "track_running_stats", None) for m in model.modules()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state()[1].copy(),
    }


def assert_same(before, after):
    for key in ("identity", "flags", "tracking", "python"):
        assert before[key] == after[key], key
    for name, value in before["values"].items():
        assert torch.equal(value, after["values"][name]), name
    for old, new in zip(before["gradients"], after["gradients"], strict=True):
        assert (old is None and new is None) or torch.equal(old, new)
    assert torch.equal(before["torch"], after["torch"])
    assert (before["numpy"] == after["numpy"]).all()


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_select_has_no_side_effects(norm, with_gradients):
    model, (x, y) = Awkward(), batch(dtype=torch.float32)
    if with_gradients:
        mu.cross_entropy(model(x), y).mean().backward()
    before = snapshot(model)
    mu.MaxUp(mu.Gaussian(0.3), m=4, norm=norm).select(model, x, y)
    assert_same(before, snapshot(model))


def test_the_awkward_model_has_side_effects():
    """Otherwise the test above could not fail."""
    model, (x, _) = Awkward(), batch(dtype=torch.float32)
    before = snapshot(model)
    model(x)
    after = snapshot(model)
    changed = {n for n, v in before["values"].items() if not torch.equal(v, after["values"][n])}
    assert {
        "calls",
        "last",
        "body.1.seen",
        "body.1.running_mean",
        "body.2.num_batches_tracked",
        "body.3.running_mean",
    } <= changed
    assert any("head" in n for n in changed)
    assert not torch.equal(before["torch"], after["torch"])
    assert before["python"] != after["python"]


@pytest.mark.parametrize("who", ["model", "loss", "perturbation"])
@pytest.mark.parametrize("norm", ["batch", "running"])
def test_nothing_changes_when_something_raises(who, norm):
    model, (x, y) = Awkward(), batch(dtype=torch.float32)
    calls = []

    def explode(where):
        calls.append(where)
        if where == who and calls.count(where) == 3:
            raise RuntimeError("boom")

    class Fragile(mu.Gaussian):
        def draw(self, batch, generator):
            explode("perturbation")
            return super().draw(batch, generator)

    def loss(output, target):
        explode("loss")
        return mu.cross_entropy(output, target)

    model.body[0].register_forward_hook(lambda *_: explode("model"))
    objective = mu.MaxUp(Fragile(0.3), m=5, norm=norm, loss_fn=loss, generator=generator())
    before, draws = snapshot(model), objective.generator.get_state()
    with pytest.raises(RuntimeError, match="boom"):
        objective.select(model, x, y)
    assert_same(before, snapshot(model))
    assert torch.equal(draws, objective.generator.get_state())
    assert objective.step == 0


def test_a_graph_from_before_selecting_can_still_be_backpropagated():
    model, (x, y) = batch_norm_net(), batch()
    pending = mu.cross_entropy(model(x), y).mean()
    mu.MaxUp(mu.Gaussian(0.3), m=3).select(model, x, y)
    pending.backward()


def test_autocast_cache_does_not_lose_gradients():
    """The training pass must not reuse casts made while scoring without a graph."""
    model, (x, y) = net(dtype=torch.float32), batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        worst_x, worst_y = mu.MaxUp(mu.Gaussian(0.3), m=3).select(model, x, y)
        loss = nn.functional.cross_entropy(model(worst_x), worst_y)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_autocast_cache_is_emptied_after_the_last_pass(monkeypatch):
    """Torch 2.11 and later do not reuse such casts, so check the order of calls instead of the effect."""
    events = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: events.append("cleared"))
    model, (x, y) = net(dtype=torch.float32), batch(dtype=torch.float32)
    model.register_forward_hook(lambda *_: events.append("pass"))
    mu.MaxUp(mu.Gaussian(0.3), m=2).select(model, x, y)
    assert events[:2] == ["pass", "pass"]
    assert "cleared" in events[2:]
    events.clear()
    with pytest.raises(RuntimeError, match="boom"), preserve_state(model, (x, y)):
        raise RuntimeError("boom")
    assert events == ["cleared"]


def test_scoring_keeps_no_graph():
    model, (x, y) = net(), batch()
    seen = []
    model.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    mu.MaxUp(mu.Gaussian(0.3), m=2)(model, x, y)
    assert seen == [False, False, False, True]  # two copies, the winners again on a first batch, training


def test_frozen_batch_norm_stays_frozen_for_every_norm():
    model, (x, y) = batch_norm_net(), batch()
    model(10 * x)
    model[1].eval()
    outcome = mu.MaxUp(mu.Gaussian(0.3), m=3, generator=generator()).run(model, x, y)
    first, _ = mu.Gaussian(0.3)(x, y, generator=generator())
    torch.testing.assert_close(outcome.worst.losses[0], mu.cross_entropy(model.eval()(first), y))
    model.train()
    model[1].eval()
    losses = [
        mu.MaxUp(mu.Gaussian(0.3), m=3, norm=n, generator=generator()).run(model, x, y).losses
        for n in ("batch", "running")
    ]
    assert torch.equal(*losses)


def test_sync_batch_norm_scores_with_the_local_batch():
    plain, (x, y) = batch_norm_net(), batch()
    sync = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert isinstance(sync[1], nn.SyncBatchNorm)
    before = snapshot(sync)
    scores = []
    for model in (plain, sync):
        seen = []
        mu.MaxUp(
            mu.Gaussian(0.3),
            m=3,
            generator=generator(),
            loss_fn=lambda o, t, s=seen: s.append(mu.cross_entropy(o, t)) or s[-1],
        ).select(model, x, y)
        scores.append(torch.stack(seen))
    torch.testing.assert_close(*scores)
    assert len(scores[0][0]) == B
    assert_same(before, snapshot(sync))


class Cache(nn.Module):
    """A buffer that grows with the input, and its size as a number: Llama's dynamic rotary embedding does this."""

    def __init__(self):
        super().__init__()
        self.size = 2
        self.register_buffer("table", torch.ones(2), persistent=False)

    def forward(self, x):
        if x.shape[1] > self.size:
            self.size = x.shape[1]
            self.register_buffer("table", torch.full((self.size,), 5.0), persistent=False)
        return x * self.table[: x.shape[1]]


class DataDependent(nn.Module):
    """A buffer that the first pass computes, and a flag."""

    def __init__(self):
        super().__init__()
        self.ready = False
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if not self.ready:
            self.mean.copy_(x.mean(0))
            self.ready = True
            self.when = 3
        return x - self.mean


@pytest.mark.parametrize("kind", [Cache, DataDependent])
def test_caches_of_buffers_and_attributes_stay_consistent(kind):
    model, x = kind(), torch.rand(6, 4)
    expected = kind()(x)
    attributes, buffers = dict(vars(model)), {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), preserve_state(model, (x, None)) as rewind:
        for _ in range(3):
            rewind()
            assert torch.equal(model(x), expected)
    assert vars(model).keys() == attributes.keys()
    assert {name: vars(model)[name] for name in ("size", "ready") if name in attributes} == {
        name: attributes[name] for name in ("size", "ready") if name in attributes
    }
    torch.testing.assert_close(dict(model.named_buffers()), buffers)
    assert torch.equal(model(x), expected)  # the training pass


def test_x_may_be_an_inference_tensor():
    with torch.inference_mode():
        x = torch.rand(5, 4)
    loss = mu.MaxUp(mu.Gaussian(0.1), m=3)(nn.Linear(4, 3), x, torch.randint(3, (5,)))
    loss.backward()

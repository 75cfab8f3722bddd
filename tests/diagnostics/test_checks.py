"""The doctor finds planted faults, and only those."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import maxup as mu
from maxup.diagnostics.checks import run_checks
from maxup.diagnostics.inputs import Inputs
from tests.tiny import batch, batch_norm_net, case, dropout_net, net, tokens


def found(*args, **kwargs):
    return list(run_checks(Inputs(*args, **kwargs)))


def said(findings, level):
    return " | ".join(finding.text for finding in findings if finding.level == level)


class Remembers(nn.Module):
    """Its forward counts in a closure, which no buffer shows; `matters` lets the count into the output."""

    def __init__(self, matters):
        super().__init__()
        self.net = net()
        count = 0

        def forward(x):
            nonlocal count
            count += 1
            return self.net(x) * (1 + 0.1 * count * matters)

        self.forward = forward


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = net(), 0

    def forward(self, x):
        self.calls += 1
        return self.net(x)


class Buffered(nn.Module):
    """The same in a registered buffer, which selecting protects."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.net(x)


class OwnRandomness(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.rng = net(), np.random.default_rng(0)

    def forward(self, x):
        return self.net(x) + float(self.rng.normal())


def test_a_good_model_is_well():
    findings = found(net(), batch())
    assert len(findings) == 10
    assert {f.level for f in findings if "times as long" not in f.text} == {"ok"}  # time is the machine's matter


@pytest.mark.parametrize("name", ["cutmix", "compose", "embedding-dropout", "feature-noise", "by-hand"])
def test_every_kind_of_perturbation_can_be_examined(name):
    perturbation, model, x, y = case(name)
    assert not said(found(model, (x, y), perturbation=perturbation), "wrong")


def test_batch_norm_and_dropout_need_attention():
    findings = found(batch_norm_net(dropout=0.3), batch())
    assert not said(findings, "wrong")
    attention = said(findings, "attention")
    assert "BatchNorm layers in training, 1" in attention
    assert "dropout layers, 1" in attention
    assert "normalizes the winners anew" in attention
    assert "few for statistics" in attention


def test_dropout_replays_to_the_last_bit():
    assert "what was scored, to the last bit" in said(found(dropout_net(), batch()), "ok")


def test_dropout_at_rest_is_not_no_dropout():
    ok = said(found(dropout_net().eval(), batch()), "ok")
    assert "all in evaluation mode, where they drop nothing" in ok
    assert "no dropout" not in ok


def test_the_noise_is_named_where_the_user_gave_none():
    x, y = batch()
    sigma = 0.1 * float(x.float().std(correction=0))
    assert f"the copies have Gaussian noise of deviation {sigma:.3g}" in said(found(net(), (x, y)), "ok")
    assert "no perturbation is given" not in said(found(net(), (x, y), perturbation=mu.Gaussian(0.1)), "ok")


class Drifts(nn.Module):
    """Its output changes a little with every pass."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = net(), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.net(x) * (1 + 1e-6 * self.calls[0])


def test_losses_that_differ_are_shown_to_differ():
    (text,) = (
        f.text
        for f in found(Drifts().double(), [b.double() if b.is_floating_point() else b for b in batch()])
        if "m = 1 gives" in f.text
    )
    ours, plain = re.search(r"the loss (\S+), but the plain loop (\S+): they differ by", text).groups()
    assert ours != plain


@pytest.mark.parametrize("slow", ["copies", "passes"])
def test_a_step_that_takes_long_needs_attention_with_the_likely_reason(monkeypatch, slow):
    """By a clock of our own: a copy or a pass without gradients takes its seconds, nothing else takes any."""
    now = [0.0]
    monkeypatch.setattr("maxup.diagnostics.checks.time.perf_counter", lambda: now[0])

    class Noise(mu.Gaussian):
        def apply(self, batch, draw):
            now[0] += slow == "copies"
            return super().apply(batch, draw)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            now[0] += 1 if slow == "passes" else 0.1
            return self.net(x)

    attention = said(found(Net(), batch(), perturbation=Noise(0.1)), "attention")
    assert "times as long as with m = 1 (about 2.3 is usual); " in attention
    assert ("bound by overhead" if slow == "passes" else "cheaper perturbation") in attention


def test_a_trace_through_a_closure_is_found():
    wrong = said(found(Remembers(matters=False), batch()), "wrong")
    assert "variable 'count' of the forward of Remembers" in wrong


def test_a_memory_that_changes_the_output_is_found():
    wrong = said(found(Remembers(matters=True), batch()), "wrong")
    assert "same random numbers differ" in wrong
    assert "m = 1 gives the loss" in wrong


def test_a_counter_is_found_as_an_attribute_but_not_as_a_buffer():
    assert "attribute 'calls' of Counts" in said(found(Counts(), batch()), "wrong")
    assert not said(found(Buffered(), batch()), "wrong")


def test_randomness_out_of_sight_is_found():
    wrong = said(found(OwnRandomness(), batch()), "wrong")
    assert "random stream of its own" in wrong


def test_a_scalar_loss_is_found_and_nothing_else_is_tried():
    (finding,) = found(net(), batch(), loss_fn=nn.functional.cross_entropy)
    assert finding.level == "wrong"
    assert "reduction='none'" in finding.text


def test_a_perturbation_that_does_nothing_is_found():
    assert "changes nothing" in said(found(net(), batch(), perturbation=mu.Gaussian(0.0)), "wrong")


def test_a_small_gap_needs_attention():
    assert "perturb more" in said(found(net(), batch(), perturbation=mu.Gaussian(1e-6)), "attention")


def test_a_model_that_fails_or_is_frozen_is_reported():
    (finding,) = found(nn.Linear(3, 4), batch())
    assert finding.level == "wrong"
    assert "failed: RuntimeError" in finding.text
    assert "nothing to train" in said(found(net().requires_grad_(False), batch()), "wrong")
    assert "evaluation mode" in said(found(net().eval(), batch()), "attention")


def test_the_examination_leaves_no_trace_of_its_own():
    model = batch_norm_net()
    model(batch()[0]).sum().backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradients, stream = [p.grad.clone() for p in model.parameters()], torch.get_rng_state()
    found(model, batch())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))
    assert torch.equal(stream, torch.get_rng_state())


def test_tokens_need_a_perturbation():
    with pytest.raises(ValueError, match="return a perturbation too"):
        Inputs(nn.Embedding(11, 4), tokens())

"""The checks find planted faults, and only those."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import maxup as mu
from maxup.diagnostics import Inputs, run_checks
from maxup.objectives.running_max import RunningMax
from tests.tiny import batch, batch_norm_net, case, dropout_net, net, tokens


def check(*args, **kwargs):
    return list(run_checks(Inputs(*args, **kwargs)))


def texts(findings, level):
    return " | ".join(finding.text for finding in findings if finding.level == level)


class CountsInClosure(nn.Module):
    """Counts forward passes in a closure. With `matters`, the count changes the output."""

    def __init__(self, matters):
        super().__init__()
        self.net = net()
        count = 0

        def forward(x):
            nonlocal count
            count += 1
            return self.net(x) * (1 + 0.1 * count * matters)

        self.forward = forward


class CountsInAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = net(), 0

    def forward(self, x):
        self.calls += 1
        return self.net(x)


class CountsInBuffer(nn.Module):
    """Counts in a registered buffer, which selection restores."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.net(x)


class HiddenRandomness(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.rng = net(), np.random.default_rng(0)

    def forward(self, x):
        return self.net(x) + float(self.rng.normal())


def test_a_correct_setup_is_ok():
    findings = check(net(), batch())
    assert len(findings) == 10
    assert {f.level for f in findings if "times as long" not in f.text} == {"ok"}  # time depends on the machine


@pytest.mark.parametrize("name", ["cutmix", "compose", "embedding-dropout", "feature-noise", "by-hand"])
def test_every_kind_of_perturbation_can_be_checked(name):
    perturbation, model, x, y = case(name)
    assert not texts(check(model, (x, y), perturbation=perturbation), "error")


def test_batch_norm_and_dropout_get_notes():
    x, y = batch()
    for copies, level in ((1, "warning"), (2, "note")):  # of the batch: few examples, and enough
        findings = check(batch_norm_net(dropout=0.3), (torch.cat([x] * copies), torch.cat([y] * copies)))
        assert not texts(findings, "error")
        assert "BatchNorm layers in training mode (1)" in texts(findings, level)
        assert ("few for batch statistics" in texts(findings, level)) == (level == "warning")
        notes = texts(findings, "note")
        assert "dropout layers (1): all copies" in notes
        assert "BatchNorm normalizes the batch of worst copies with its own statistics" in notes


def test_dropout_is_replayed_exactly():
    assert "reproduces the scored losses exactly" in texts(check(dropout_net(), batch()), "ok")


def test_dropout_in_evaluation_mode_is_reported():
    ok = texts(check(dropout_net().eval(), batch()), "ok")
    assert "all in evaluation mode, where they drop nothing" in ok
    assert "no dropout" not in ok


def test_the_default_noise_is_reported():
    x, y = batch()
    sigma = 0.1 * float(x.float().std(correction=0))
    assert f"copies get Gaussian noise with sigma = {sigma:.3g}" in texts(check(net(), (x, y)), "ok")
    assert "no perturbation was passed" not in texts(check(net(), (x, y), perturbation=mu.Gaussian(0.1)), "ok")


class Drifts(nn.Module):
    """Its output changes a little with every pass."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = net(), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.net(x) * (1 + 1e-6 * self.calls[0])


def test_different_losses_are_printed_with_enough_digits():
    (text,) = (
        f.text
        for f in check(Drifts().double(), [b.double() if b.is_floating_point() else b for b in batch()])
        if "with m = 1 the loss is" in f.text
    )
    ours, plain = re.search(r"the loss is (\S+), but in a plain loop it is (\S+): they differ by", text).groups()
    assert ours != plain


@pytest.mark.parametrize("slow", ["copies", "passes", "overhead"])
def test_a_slow_step_is_reported_with_the_likely_reason(monkeypatch, slow):
    """With a fake clock, on which one thing takes most of the time."""
    now = [0.0]
    monkeypatch.setattr("maxup.diagnostics.checks.time.perf_counter", lambda: now[0])

    def update(*args):
        now[0] += slow == "overhead"
        original(*args)

    original = RunningMax.update
    monkeypatch.setattr(RunningMax, "update", update)

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

    findings = check(Net(), batch(), perturbation=Noise(0.1))
    if slow == "passes":  # 1 pass with m = 1, and 4 + 1 with m = 4
        text = "takes 5.00 times as long as with m = 1 (5.00 is expected from 4 more forward passes)"
        assert text in texts(findings, "ok")
    else:
        warnings = texts(findings, "warning")
        assert " is expected from 4 more forward passes); " in warnings
        assert ("overhead dominates" if slow == "overhead" else "cheaper perturbation") in warnings


def test_a_side_effect_in_a_closure_is_found():
    errors = texts(check(CountsInClosure(matters=False), batch()), "error")
    assert "variable 'count' of the forward of CountsInClosure" in errors


def test_hidden_state_that_changes_the_output_is_found():
    errors = texts(check(CountsInClosure(matters=True), batch()), "error")
    assert "same random state differ" in errors
    assert "with m = 1 the loss is" in errors


def test_a_counter_may_be_a_buffer_but_not_an_attribute():
    assert "attribute 'calls' of CountsInAttribute" in texts(check(CountsInAttribute(), batch()), "error")
    assert not texts(check(CountsInBuffer(), batch()), "error")


def test_hidden_randomness_is_found():
    errors = texts(check(HiddenRandomness(), batch()), "error")
    assert "uses its own random generator" in errors


def test_a_scalar_loss_is_found_and_stops_the_checks():
    (finding,) = check(net(), batch(), loss_fn=nn.functional.cross_entropy)
    assert finding.level == "error"
    assert "reduction='none'" in finding.text


def test_a_perturbation_that_does_nothing_is_found():
    assert "changes nothing" in texts(check(net(), batch(), perturbation=mu.Gaussian(0.0)), "error")


def test_a_small_gap_gets_a_warning():
    assert "use a stronger perturbation" in texts(check(net(), batch(), perturbation=mu.Gaussian(1e-6)), "warning")


def test_a_model_that_fails_or_is_frozen_is_reported():
    (finding,) = check(nn.Linear(3, 4), batch())
    assert finding.level == "error"
    assert "failed: RuntimeError" in finding.text
    assert "nothing to train" in texts(check(net().requires_grad_(False), batch()), "error")
    assert "evaluation mode" in texts(check(net().eval(), batch()), "warning")


def test_the_checks_have_no_side_effects():
    model = batch_norm_net()
    model(batch()[0]).sum().backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradients, stream = [p.grad.clone() for p in model.parameters()], torch.get_rng_state()
    check(model, batch())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))
    assert torch.equal(stream, torch.get_rng_state())


def test_tokens_need_a_perturbation():
    with pytest.raises(ValueError, match="pass a perturbation too"):
        Inputs(nn.Embedding(11, 4), tokens())


def test_a_batch_may_hold_more_than_tensors():
    x, y = batch()
    options = {"perturbation": mu.Gaussian(0.1, key="x"), "forward": lambda model, inputs: model(inputs["x"])}
    found = check(net(), ({"mask": None, "name": "first", "x": x}, y), **options)
    assert not texts(found, "error")
    assert "exact" in texts(found, "ok")

import math

import pytest
import torch

import maxup as mu
from tests.tiny import CLASSES, B, batch, batch_norm_net, generator, net, soft


def test_report_against_scores_by_hand():
    model, (x, y) = net(), batch()
    outcome = mu.MaxUp(mu.Gaussian(0.3), m=4, generator=generator()).run(model, x, y)
    g = generator()
    losses = torch.stack([mu.cross_entropy(model(mu.Gaussian(0.3)(x, y, generator=g)[0]), y) for _ in range(4)])
    report = outcome.report
    assert report.copies == 4
    assert report.gap == pytest.approx((losses.amax(0) - losses.mean(0)).mean().item())
    assert report.wins == torch.bincount(losses.argmax(0), minlength=4).tolist()
    assert report.label_entropy == 0
    assert report.replay_exact


def test_label_entropy_of_the_winners():
    model, (x, _) = net(), batch()
    even = torch.full((B, CLASSES), 1 / CLASSES, dtype=torch.float64)
    report = mu.MaxUp(mu.Gaussian(0.3), m=2).run(model, x, even).report
    assert report.label_entropy == pytest.approx(math.log(CLASSES))


def test_one_copy_reports_no_gap():
    report = mu.MaxUp(mu.Gaussian(0.3), m=1).run(net(), *batch()).report
    assert (report.copies, report.gap, report.wins, report.replay_exact) == (1, 0.0, [B], True)


def test_batch_norm_is_not_replayed_exactly():
    model, (x, y) = batch_norm_net(), batch()
    report = mu.MaxUp(mu.Gaussian(0.5), m=4).run(model, x, y).report
    assert not report.replay_exact
    assert 0 < report.replay_error < 10


def test_objectives_without_selection_have_no_report():
    outcome = mu.Average(mu.Gaussian(0.1), m=2).run(net(), *batch())
    assert outcome.report is None
    assert outcome.draw is None


def test_mixed_targets_are_in_the_outcome():
    x, y = batch()
    outcome = mu.MaxUp(mu.CutMix(CLASSES), m=2).run(net(), x, soft(y))
    assert outcome.target.shape == (B, CLASSES)

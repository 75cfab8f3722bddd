import math

import pytest
import torch
from torch import nn

from maxup.lab.certify.attack import attack, check
from maxup.smoothing.smooth import Smooth


def line():
    """The boundary is x[0] = 0: class 0 on the right."""
    model = nn.Linear(3, 2, bias=False)
    model.weight.data.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    return model


def test_attack_moves_straight_to_the_boundary_by_each_radius():
    x, radius = torch.tensor([[0.5, 0.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0.3, 0.7])
    reached = attack(Smooth(line(), 2, 0.5), x, torch.tensor([0, 0]), radius, steps=10)
    assert torch.allclose((reached - x).norm(dim=1), radius, atol=1e-5)
    torch.testing.assert_close(reached[:, 0], x[:, 0] - radius, atol=0.02, rtol=0)


def test_certificates_hold_within_their_radius_and_break_beyond():
    x = torch.stack([torch.linspace(-1.2, 1.2, 25), torch.zeros(25), torch.ones(25)], 1)
    smooth = Smooth(line(), 2, 0.5)
    found = list(smooth.certify_many(x, 100, 5000, 0.001, 1000))
    predict, radius = [c.predict for c in found], [c.radius for c in found]
    options = {"n": 2000, "alpha": 0.001, "batch_size": 1000, "steps": 10}
    within = check(smooth, x, predict, radius, **options)
    assert within.attacked == sum(p >= 0 for p in predict) > 15
    assert within.broken == 0
    assert within.held + within.abstained == within.attacked
    beyond = check(smooth, x, predict, radius, factor=2.0, **options)
    assert beyond.broken > 10
    assert within.attacked < 25  # some abstain
    assert within.expected == pytest.approx(0.001 * (25 + within.attacked))
    assert "0 broken" in str(within)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_factor_must_be_a_finite_number_above_0(factor):
    with pytest.raises(ValueError, match=f"factor={factor}: factor must be a finite number above 0"):
        check(Smooth(line(), 2, 0.5), torch.rand(1, 3), [0], [0.1], n=9, alpha=0.1, batch_size=9, factor=factor)


def test_attack_leaves_the_model_unchanged():
    model = nn.Sequential(line(), nn.BatchNorm1d(2), nn.Dropout(0.5))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attack(Smooth(model, 2, 0.5), torch.rand(4, 3), torch.zeros(4).long(), torch.ones(4), steps=2)
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())

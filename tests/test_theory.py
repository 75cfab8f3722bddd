import itertools
import math

import pytest
import torch
from torch import nn

import maxup as mu
from maxup import theory
from tests.tiny import batch, batch_norm_net, generator, net

# the table in docs/decisions.md
EXPECTED_MAX = {
    2: 0.5642, 4: 1.0294, 5: 1.1630, 10: 1.5388, 20: 1.8675, 25: 1.9653, 50: 2.2491, 100: 2.5076, 150: 2.6492,
}  # fmt: skip


@pytest.mark.parametrize("m", EXPECTED_MAX)
def test_c_matches_the_table_and_the_paper_s_bounds(m):
    assert theory.expected_max(m) == pytest.approx(EXPECTED_MAX[m], abs=5e-5)
    assert 0.23 * math.sqrt(math.log(m)) <= theory.expected_max(m) <= math.sqrt(2 * math.log(m))
    assert theory.c(m, 0.5) == pytest.approx(0.5 * EXPECTED_MAX[m], abs=5e-5)


def test_c_in_closed_form():
    assert theory.expected_max(1) == pytest.approx(0, abs=1e-12)
    assert theory.expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-12)
    assert theory.expected_max(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-12)


def first(output, target):
    return output[:, 0]


def test_theorem_is_exact_for_a_linear_loss():
    model = nn.Linear(6, 1, dtype=torch.float64)
    x = torch.rand(4, 6, dtype=torch.float64)
    mean, _ = theory.remainder(model, x, None, m=5, sigma=2.0, samples=20, loss_fn=first)
    assert mean.abs().max() < 1e-12
    # and against plain Monte Carlo, without the control variate
    found = theory.penalty(model, x, None, m=5, sigma=2.0, loss_fn=first)
    torch.testing.assert_close(found.gradient_norm, model.weight.norm().detach().expand(4))
    objective = mu.MaxUp(mu.Gaussian(2.0), m=5, loss_fn=first, generator=generator())
    runs = torch.stack([objective.run(model, x, None).losses.detach() for _ in range(3000)])
    error = runs.std(0) / math.sqrt(3000)
    assert ((runs.mean(0) - found.expansion).abs() < 4 * error).all()


@pytest.mark.slow
def test_remainder_falls_as_sigma_squared():
    model, (x, y) = net(), batch()
    sizes = []
    for sigma in (0.4, 0.2, 0.1, 0.05):
        mean, error = theory.remainder(model, x, y, m=4, sigma=sigma, samples=2000, generator=generator())
        sizes.append(mean.norm().item())
        assert error.norm() < 0.1 * sizes[-1]
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(sizes)]
    assert all(1.8 < slope < 2.2 for slope in slopes), slopes


@pytest.mark.parametrize(
    "perturbation", [mu.Gaussian(0.05), mu.UniformBall(0.05 * 14, p=2), mu.UniformBall(0.08, p=math.inf)]
)
def test_the_average_has_no_first_order_term_and_maxup_has(perturbation):
    """In units of the standard deviation of <gradient, z>, MaxUp's excess is about E max; the average's is about 0."""
    model, (x, y) = net(), batch()
    base = mu.cross_entropy(model(x), y).detach()
    norm = theory.penalty(model, x, y, m=2, sigma=1.0).gradient_norm
    (z,) = perturbation.draw((x.repeat(200, 1, 1, 1), None), generator(9))
    unit = z.std() * norm  # (B,)
    excess = {}
    for name, objective in (("max", mu.MaxUp), ("average", mu.Average)):
        runs = []
        drawn = objective(perturbation, m=4, generator=generator())
        for _ in range(400):
            losses = drawn.run(model, x, y).losses.detach()
            runs.append(losses.view(-1, len(y)).mean(0))
        excess[name] = ((torch.stack(runs).mean(0) - base) / unit).mean().item()
    assert excess["max"] == pytest.approx(theory.expected_max(4), abs=0.15)
    assert excess["average"] == pytest.approx(0, abs=0.05)


def test_penalty_of_a_model_and_batch():
    model, (x, y) = net(), batch()
    found = theory.penalty(model, x, y, m=4, sigma=0.2)
    for i in range(len(y)):  # gradients one by one
        xi = x[i : i + 1].clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(xi), y[i : i + 1])
        (gradient,) = torch.autograd.grad(loss, xi)
        assert found.loss[i].item() == pytest.approx(loss.item())
        assert found.gradient_norm[i].item() == pytest.approx(gradient.norm().item())
    torch.testing.assert_close(found.penalty, theory.c(4, 0.2) * found.gradient_norm)
    assert "c 0.2059" in str(found)


def test_penalty_has_no_side_effects_and_examples_are_independent():
    model, (x, y) = batch_norm_net(), batch()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    together = theory.penalty(model, x, y, m=4, sigma=0.2)
    alone = theory.penalty(model, x[:1], y[:1], m=4, sigma=0.2)
    torch.testing.assert_close(together.gradient_norm[:1], alone.gradient_norm)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_invalid_arguments():
    with pytest.raises(ValueError, match="m=0"):
        theory.expected_max(0)
    with pytest.raises(ValueError, match="sigma must be"):
        theory.c(4, -1)
    with pytest.raises(ValueError, match="the loss returned"):
        theory.penalty(net(), *batch(), m=2, sigma=0.1, loss_fn=nn.functional.cross_entropy)


@pytest.mark.parametrize(("m", "expected"), [(1, 1.0), (2, 1 + 2 / math.pi)])
def test_remainder_of_a_parabola_in_closed_form(m, expected):
    """L = x^2 at 0 has no gradient: the remainder is E[max_i z_i^2], sigma^2 for one copy, (1 + 2/pi) of it for two."""
    x = torch.zeros(500, 1, dtype=torch.float64)
    mean, _ = theory.remainder(
        nn.Identity(), x, None, m=m, sigma=0.5, samples=200, loss_fn=lambda o, _: o[:, 0] ** 2, generator=generator()
    )
    assert mean.mean().item() == pytest.approx(0.25 * expected, rel=0.02)


def test_remainder_without_a_generator():
    mean, error = theory.remainder(net(), *batch(), m=2, sigma=0.3, samples=20)
    assert (error > 0).all()
    torch.manual_seed(0)
    again, _ = theory.remainder(net(), *batch(), m=2, sigma=0.3, samples=20)
    torch.testing.assert_close(mean, again)


def test_remainder_shares_dropout_masks():
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3)).double()
    x, y = torch.rand(5, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.long)
    mean, _ = theory.remainder(model, x, y, m=2, sigma=0.0, samples=3)
    assert mean.abs().max() < 1e-12

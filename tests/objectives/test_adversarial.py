import math

import pytest
import torch
from torch import nn

import maxup as mu
from tests.tiny import batch, batch_norm_net, dropout_net, generator, net


def margin(output, target):
    """A linear loss: the first output, so that the worst point of a ball is known exactly."""
    return output[:, 0]


@pytest.mark.parametrize("p", [2, math.inf])
def test_finds_the_exact_maximum_of_a_linear_loss(p):
    model = nn.Linear(7, 1, dtype=torch.float64)
    x, w = torch.rand(5, 7, dtype=torch.float64), model.weight[0].detach()
    outcome = mu.Adversarial(0.3, p=p, steps=100, step_size=0.3, loss_fn=margin).run(model, x, torch.zeros(5))
    dual = w.norm() if p == 2 else w.abs().sum()  # max over the ball of <w, delta> = radius * dual norm of w
    torch.testing.assert_close(outcome.losses, model(x)[:, 0] + 0.3 * dual)


@pytest.mark.parametrize("p", [2, math.inf])
def test_stays_in_the_ball_and_in_range(p):
    model, (x, y) = net(), batch()
    adversarial = mu.Adversarial(0.5, p=p, steps=5, clip=(0.0, 1.0))
    start = mu.UniformBall(0.5, p=p).draw((x, y), generator())
    worst, _ = adversarial.attack(model, (x, y), start)
    size = (worst - x).flatten(1).norm(p, dim=1)
    assert (size <= 0.5 + 1e-9).all()
    assert size.min() > 0.1
    assert worst.min() >= 0
    assert worst.max() <= 1


def test_moves_even_if_the_network_is_certain():
    model = nn.Linear(3, 2, bias=False)
    model.weight.data.copy_(torch.tensor([[95.0, 0.0, 0.0], [-95.0, 0.0, 0.0]]))
    x, y = torch.tensor([[0.5, 0.2, 0.2]]), torch.tensor([0])
    worst, _ = mu.Adversarial(0.3, steps=1, step_size=0.3).attack(model, (x, y), [torch.zeros_like(x)])
    torch.testing.assert_close(worst, torch.tensor([[0.2, 0.2, 0.2]]))


def test_worse_than_maxup_s_mild_search():
    model, (x, y) = net(), batch()
    pgd = mu.Adversarial(1.0, p=2, steps=10)(model, x, y)
    mild = mu.MaxUp(mu.UniformBall(1.0, p=2), m=10)(model, x, y)
    assert pgd > mild > mu.cross_entropy(model(x), y).mean()


def test_the_attack_has_no_side_effects():
    model, (x, y) = batch_norm_net(dropout=0.5), batch()
    before, stream = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    adversarial = mu.Adversarial(0.5, steps=3)
    adversarial.attack(model, (x, y), mu.UniformBall(0.5).draw((x, y), generator()))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(stream, torch.get_rng_state())
    assert not x.requires_grad


def test_attack_and_training_share_dropout_masks():
    model, (x, y) = dropout_net(), batch()
    seen = []
    mu.Adversarial(0.5, steps=2, step_size=0.0, loss_fn=lambda o, t: seen.append(mu.cross_entropy(o, t)) or seen[-1])(
        model, x, y
    )
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])


def test_the_default_step_size_is_that_of_madry_et_al():
    assert mu.Adversarial(0.4, steps=10).step_size == pytest.approx(2.5 * 0.4 / 10)


def test_norm_decides_the_statistics_of_the_attack():
    model, (x, y) = batch_norm_net(), batch()
    model(10 * x)
    start = [torch.zeros_like(x)]
    batch_wise, running = (
        mu.Adversarial(0.5, steps=1, norm=n).attack(model, (x, y), start)[0] for n in ("batch", "running")
    )
    frozen = mu.Adversarial(0.5, steps=1).attack(model.eval(), (x, y), start)[0]
    torch.testing.assert_close(running, frozen)
    assert not torch.allclose(batch_wise, frozen)


def test_a_leaf_that_the_model_does_not_use():
    x = {"a": torch.rand(6, 5), "unused": torch.rand(6, 2)}
    objective = mu.Adversarial(0.5, steps=2, forward=lambda model, x: model(x["a"]))
    objective(nn.Linear(5, 3), x, torch.zeros(6, dtype=torch.long)).backward()


def test_invalid_arguments():
    with pytest.raises(ValueError, match="radius must be"):
        mu.Adversarial(-1)
    with pytest.raises(ValueError, match=r"step_size='big'\): step_size must be a finite number"):
        mu.Adversarial(0.5, step_size="big")
    with pytest.raises(ValueError, match="steps=0"):
        mu.Adversarial(1, steps=0)
    with pytest.raises(ValueError, match="p=1"):
        mu.Adversarial(1, p=1)

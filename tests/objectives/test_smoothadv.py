import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup.objectives.smoothadv import SmoothAdv, ddn, pgd, rising, soft
from tests.tiny import batch, batch_norm_net, generator, net
from tests.tiny import soft as soft_labels


def direction(model):
    """The unit vector that lowers class 0 of a linear two-class model fastest."""
    w = model.weight[1] - model.weight[0]
    return (w / w.norm()).detach()


def linear():
    return nn.Linear(5, 2, dtype=torch.float64).requires_grad_(False)


def test_pgd_finds_the_worst_point_of_a_linear_classifier():
    model, x = linear(), torch.rand(4, 5, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    worst = pgd(lambda x: model(x).log_softmax(1), x, y, radius=0.3, steps=5)
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(worst, x + 0.3 * sign * direction(model), atol=1e-6, rtol=1e-6)


def test_ddn_finds_the_shortest_perturbation_of_a_linear_classifier():
    model, x = linear(), torch.rand(6, 5, dtype=torch.float64)
    logits = model(x)
    y = logits.argmax(1)
    w = (model.weight[1] - model.weight[0]).norm()
    distance = (logits[:, 1] - logits[:, 0]).abs() / w
    found = ddn(lambda x: model(x).log_softmax(1), x, y, radius=5.0, steps=200) - x
    assert (model(x + found).argmax(1) != y).all()
    assert (found.norm(dim=1) >= distance - 1e-9).all()
    torch.testing.assert_close(found.norm(dim=1), distance, rtol=0.15, atol=0.02)


@pytest.mark.parametrize("attack", [pgd, ddn])
def test_attacks_stay_in_the_ball_and_in_range(attack):
    model, (x, y) = net(), batch()
    worst = attack(lambda x: model(x).log_softmax(1), x, y, radius=0.4, steps=7, clip=(0.0, 1.0))
    assert ((worst - x).flatten(1).norm(dim=1) <= 0.4 + 1e-9).all()
    assert 0 <= worst.min() <= worst.max() <= 1
    assert F.cross_entropy(model(worst), y) > F.cross_entropy(model(x), y)


@pytest.mark.parametrize("attack", [pgd, ddn])
@pytest.mark.parametrize("margin", [60.0, 95.0])  # the squares of the gradient vanish, or it is subnormal itself
def test_attacks_follow_the_gradient_even_if_the_network_is_certain(attack, margin):
    steepest = torch.tensor([0.8, 0.6, 0.0])
    x = torch.tensor([[0.5, 0.5, 0.2]])
    weight = margin / 1.4 * torch.stack([steepest, -steepest])  # logits half the margin above and below 0
    options = {"radius": 0.3, "steps": 1, "clip": (0.0, 1.0)}
    worst = attack(lambda x: (x @ weight.T).log_softmax(1), x, torch.tensor([0]), **options)
    torch.testing.assert_close(worst, x - 0.3 * steepest)


@pytest.mark.parametrize("attack", [pgd, ddn])
@pytest.mark.parametrize("radius", [1.0, 8.0])
def test_attacks_stay_where_there_is_no_gradient(attack, radius):
    x = torch.rand(2, 3)
    assert torch.equal(attack(lambda x: 0 * x, x, torch.tensor([0, 0]), radius=radius, steps=3), x)


def test_a_clip_and_a_scheduled_radius_are_checked():
    for clip in ((1.0, 0.0), 0.5, (0, 1, 2), (None, 1), "ab"):
        with pytest.raises(ValueError, match=r"SmoothAdv\(clip=.*\): clip must be \(lowest, highest\)"):
            SmoothAdv(0.25, 0.5, clip=clip)
    smoothadv, (x, y) = SmoothAdv(0.25, lambda step: -1.0), batch()
    with pytest.raises(ValueError, match="a finite number, 0 or more"):
        smoothadv(net(), x, y)


def test_ddn_does_not_change_misclassified_images():
    model, (x, _) = net(), batch()
    y = (model(x).argmax(1) + 1) % 4
    assert torch.equal(ddn(lambda x: model(x).log_softmax(1), x, y, radius=1.0, steps=5), x)


def test_the_soft_classifier_averages_probabilities():
    model, (x, _) = net(), batch()
    noise = [torch.randn_like(x) for _ in range(3)]
    by_hand = torch.stack([model(x + n).softmax(1) for n in noise]).mean(0).log()
    torch.testing.assert_close(soft(model, noise, x).double(), by_hand, atol=1e-5, rtol=1e-5)


def naive(model, x, y, sigma, radius, samples, steps, seed):
    """The objective written with loops, for a model without BatchNorm, clipped to [0, 1]."""
    g = generator(seed)
    noise = [torch.empty_like(x).normal_(generator=g) * sigma for _ in range(samples)]
    delta = torch.zeros_like(x)
    for _ in range(steps):
        delta.requires_grad_()
        p = sum(model(x + delta + n).softmax(1) for n in noise) / samples
        (gradient,) = torch.autograd.grad(-p.log()[range(len(y)), y].sum(), delta)
        with torch.no_grad():
            for i in range(len(x)):
                gradient[i] /= gradient[i].norm()
            delta = (x + delta + 2 * radius / steps * gradient).clamp(0, 1) - x
            for i in range(len(x)):
                delta[i] *= min(1.0, radius / float(delta[i].norm()))
    return sum(F.cross_entropy(model(x + delta + n), y) for n in noise) / samples


@pytest.mark.parametrize("samples", [1, 3])
def test_the_objective_is_its_definition(samples):
    model, (x, y) = net(), batch()
    objective = SmoothAdv(0.25, 0.5, samples=samples, steps=4, generator=generator(7))
    outcome = objective.run(model, x, y)
    torch.testing.assert_close(outcome.loss, naive(model, x, y, 0.25, 0.5, samples, 4, 7), atol=1e-5, rtol=1e-5)
    assert outcome.losses.shape == (samples * len(x),)
    outcome.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_attack_runs_in_evaluation_mode_without_side_effects():
    model, (x, y) = batch_norm_net(dropout=0.5), batch()
    modes = []
    model[1].register_forward_hook(lambda m, *_: modes.append(m.training))
    SmoothAdv(0.25, 0.5, steps=3)(model, x, y)
    assert modes == [False, False, False, True]
    assert all(m.training for m in model.modules())
    assert int(model[1].num_batches_tracked) == 1  # by the training pass only


def test_modules_that_forward_calls_are_attacked_in_evaluation_mode():
    body, head, modes = nn.Flatten(), nn.Sequential(nn.Dropout(0.5), nn.LazyLinear(4)), []
    x, y = batch()

    def forward(model, x):
        modes.append(head.training)
        return head(model(x))

    head(x.flatten(1).float())
    SmoothAdv(0.25, 0.5, steps=3, forward=forward)(body, x.float(), y)
    assert modes == [False, False, False, True]


def test_radius_zero_is_gaussian_augmentation():
    from maxup import Gaussian, MaxUp

    model, (x, y) = net(), batch()
    attacked = SmoothAdv(0.25, 0.0, steps=3, generator=generator())(model, x, y)
    plain = MaxUp(Gaussian(0.25), m=1, generator=generator())(model, x, y)
    torch.testing.assert_close(attacked, plain)


def test_the_radius_rises_and_is_part_of_what_a_captured_step_depends_on():
    objective = SmoothAdv(0.25, rising(0.5, epochs=2, steps_per_epoch=1), samples=2, steps=1)
    model, (x, y) = net(), batch()
    keys = []
    for _ in range(3):
        keys.append(objective.depends_on())
        objective(model, x, y)
    assert [key[-1] for key in keys] == [0.25, 0.5, 0.5]
    assert keys[0] != keys[1] == keys[2]


def test_invalid_arguments():
    with pytest.raises(ValueError, match="attack='fgsm' is unknown"):
        SmoothAdv(0.25, 0.5, attack="fgsm")
    with pytest.raises(ValueError, match="radius must be"):
        SmoothAdv(0.25, -1)
    with pytest.raises(ValueError, match="sigma must be"):
        SmoothAdv(math.nan, 0.5)
    x, y = batch()
    with pytest.raises(TypeError, match="needs class ids"):
        SmoothAdv(0.25, 0.5)(net(), x, soft_labels(y))

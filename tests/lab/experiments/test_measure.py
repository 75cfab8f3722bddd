"""Metrics against plain loops and closed forms."""

import pytest
import torch
from torch import nn

import maxup as mu
from maxup.lab.experiments.measure import correct, correct_on_all, correct_under_attack, gradient_norm, measure
from tests.tiny import CLASSES, batch, generator, net


def test_worst_of_twenty_copies_is_a_plain_loop_over_examples_and_copies():
    model, (x, y), gaussian = net().eval(), batch(b=40), mu.Gaussian(0.05)
    y = model(x).argmax(1)  # so that some predictions are correct
    found = correct_on_all(model, (x, y), gaussian, 20, generator(3))
    g = generator(3)
    noises = [gaussian.draw((x, y), g)[0] for _ in range(20)]
    wanted = []
    for i in range(len(x)):
        wrong = 0
        for noise in noises:
            wrong += int(model((x[i] + noise[i])[None]).argmax()) != int(y[i])
        wanted.append(wrong == 0)
    assert found.tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)


def test_mixed_targets_count_by_their_most_probable_class():
    model, (x, _) = net().eval(), batch(b=8)
    answer = model(x).argmax(1)
    target = 0.7 * nn.functional.one_hot(answer, CLASSES).double() + 0.3 / CLASSES
    assert correct(model, (x, target)).all()
    assert not correct(model, (x, target.roll(1, dims=1))).any()


def test_an_attack_on_a_linear_model_succeeds_exactly_within_the_margin():
    """For two classes the distance to the boundary is |(w0 - w1) x + b0 - b1| / ||w0 - w1||."""
    torch.manual_seed(0)
    model, x = nn.Linear(6, 2).double().eval(), torch.randn(200, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    w, b = model.weight[0] - model.weight[1], model.bias[0] - model.bias[1]
    distance = (x @ w + b).abs() / w.norm()
    for radius in (0.1, 0.5):
        attack = mu.Adversarial(radius, steps=20)
        found = correct_under_attack(model, (x, y), attack, generator())
        clear = (distance - radius).abs() > 0.02
        assert torch.equal(found[clear], (distance > radius)[clear])


def test_gradient_norm_is_autograds():
    model, (x, y) = net().eval(), batch()
    x = x.requires_grad_()
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y, reduction="sum"), x)
    torch.testing.assert_close(gradient_norm(model, (x.detach(), y)), g.flatten(1).norm(dim=1))


def test_measure_sums_over_batches_and_leaves_no_trace():
    model, (x, y) = net().eval(), batch(b=12)
    y = model(x).argmax(1)
    before = torch.get_rng_state()
    arguments = {"copies": 5, "attack": mu.Adversarial(0.2, norm="running"), "seed": 4}
    found = measure(model, [(x[:5], y[:5]), (x[5:], y[5:])], mu.Gaussian(0.3), **arguments)
    again = measure(model, [(x[:5], y[:5]), (x[5:], y[5:])], mu.Gaussian(0.3), **arguments)
    assert found == again
    assert found["clean"] == 100
    assert found["gradient"] == pytest.approx(float(gradient_norm(model, (x, y)).mean()))
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_a_perturbation_inside_the_model_has_no_worst_copy():
    inside, model = mu.FeatureNoise(0.5, layer="1"), net().eval()
    found = measure(model, [batch()], inside, copies=5, attack=mu.Adversarial(0.2), seed=0)
    assert set(found) == {"clean", "attacked", "gradient"}


def test_token_ids_have_no_attack_and_no_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3)).eval()
    tokens = torch.randint(9, (12, 5))
    y = model(tokens).argmax(1)
    dropout = mu.TokenDropout(0.5, mask_id=0)
    found = measure(model, [(tokens, y)], dropout, copies=5, attack=mu.Adversarial(0.2), seed=0)
    assert found["clean"] == 100
    assert 0 < found["worst"] < 100
    assert set(found) == {"clean", "worst"}

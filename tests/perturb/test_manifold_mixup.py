import copy
import pickle

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import maxup as mu
from tests.tiny import CLASSES, B, batch, generator, gradients, net

LAYERS = ["input", "0", "1", "3"]


def mixup(model, layers=LAYERS, **arguments):
    perturbation = mu.ManifoldMixup(layers, CLASSES, **arguments)
    perturbation.attach(model)
    return perturbation


def by_hand(model, x, y, chosen, partner, weight):
    """Run the network layer by layer, and blend each example with its partner after the chosen layer."""

    def mixed(rows):
        return torch.stack([w * rows[i] + (1 - w) * rows[partner[i]] for i, w in enumerate(weight)])

    hidden = mixed(x) if chosen == "input" else x
    for name, part in model.named_children():
        hidden = mixed(part(hidden)) if name == chosen else part(hidden)
    return hidden, mixed(F.one_hot(y, CLASSES).double())


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_agrees_with_the_network_layer_by_layer(number):
    model, (x, y) = net(), batch()
    perturbation = mixup(model)
    draw = perturbation.draw((x, y), generator()) | {"layer": torch.full((B,), number)}
    partner, weight = draw["partner"].tolist(), draw["weight"].tolist()
    output, target = by_hand(copy.deepcopy(model), x, y, LAYERS[number], partner, weight)
    new_x, new_y = perturbation.apply((x, y), draw)
    got = model(new_x)
    torch.testing.assert_close(got, output)
    torch.testing.assert_close(new_y, target)
    F.cross_entropy(got, new_y).backward()
    reference = net()
    output, target = by_hand(reference, x, y, LAYERS[number], partner, weight)
    F.cross_entropy(output, target).backward()
    for ours, theirs in zip(gradients(model), gradients(reference), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_copies_of_a_batch_share_the_layer_but_steps_do_not():
    model, (x, y) = net(), batch()
    perturbation, g = mixup(model), generator()
    layers = set()
    for _ in range(40):
        drawn = [perturbation.draw((x, y), g) for _ in range(3)]
        assert len(torch.cat([draw["layer"] for draw in drawn]).unique()) == 1
        assert not torch.equal(drawn[0]["weight"], drawn[1]["weight"])
        layers.add(int(drawn[0]["layer"][0]))
        x = x.clone()  # the next batch
    assert layers == set(range(4))
    maxup = mu.MaxUp(perturbation, m=3, generator=g)
    assert len({int(maxup.run(model, x, y).draw["layer"][0]) for _ in range(40)}) == 4  # one batch, many steps
    seen = set()
    for _ in range(40):
        perturbation(x, y, generator=g)
        seen.add(int(perturbation.hooks[0].draw["layer"][0]))
    assert len(seen) == 4


def test_draws_follow_their_distributions():
    x = torch.zeros(4000, 1)
    model = nn.Sequential(nn.Linear(1, 1))
    perturbation = mixup(model, ["0"], alpha=0.5)
    draw = perturbation.draw((x, None), generator())
    assert stats.kstest(draw["weight"].numpy(), stats.beta(0.5, 0.5).cdf).pvalue > 0.01
    assert (draw["partner"] != torch.arange(4000)).all()
    layers = [int(mixup(net()).draw((x, None), generator(s))["layer"][0]) for s in range(400)]
    assert stats.chisquare(torch.bincount(torch.tensor(layers), minlength=4).numpy()).pvalue > 0.01


def test_labels_are_mixed_in_a_composition():
    model, (x, y) = net(), batch()
    outcome = mu.MaxUp(mu.Compose(mu.Cutout(3), mixup(model)), m=1, generator=generator()).run(model, x, y)
    assert outcome.target.shape == (B, CLASSES)
    assert ((outcome.target > 0).sum(1) == 1 + (y != y[outcome.draw["inside"][0]["partner"]])).all()
    assert outcome.report.replay_exact


def test_evaluation_copies_and_pickles():
    model, (x, y) = net(), batch()
    clean = model(x)
    perturbation = mixup(model, ["0"])
    perturbation(x, y, generator=generator())
    assert not torch.equal(model(x), clean)
    assert torch.equal(model.eval()(x), clean)
    with pytest.raises(RuntimeError, match="has no effect in evaluation mode"):
        perturbation(x, y)
    model.train()
    for copied in (copy.deepcopy(perturbation), pickle.loads(pickle.dumps(perturbation))):
        copied(x, y, generator=generator())


def test_invalid_input_is_refused():
    model, (x, y) = net(), batch()
    with pytest.raises(ValueError, match="to mix only the input, use MixUp"):
        mu.ManifoldMixup(["input"])
    with pytest.raises(ValueError, match="each once"):
        mu.ManifoldMixup(["0", "0"])
    with pytest.raises(ValueError, match="the model has no layer 'nine'; its layers are 0, 1, 2, 3"):
        mixup(model, ["nine"])
    with pytest.raises(RuntimeError, match="not attached to a model"):
        mu.ManifoldMixup(["0"])(x, y)
    lstm = nn.Sequential(nn.LSTM(3, 4))
    mixup(lstm, ["0"])(torch.zeros(2, 5, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="mixes a floating-point tensor of 2 examples, but a layer returned a tuple"):
        lstm(torch.zeros(2, 5, 3))

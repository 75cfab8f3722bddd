"""AWD-LSTM against steps written by hand."""

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from maxup.lab.models.awd_lstm import AWDLSTM, adversarial_scores
from maxup.lab.registry import LANGUAGE_MODELS, build

WORDS, B, T = 30, 4, 6
PLAIN = {"input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "weight_drop": 0.0}


def net(**changes):
    return AWDLSTM(WORDS, **({"embedding": 8, "hidden": 12, "layers": 3} | PLAIN | changes)).double()


def tokens():
    return torch.randint(WORDS, (B, T))


def cell(weights, x, h, c):
    """One LSTM layer from its equations, step by step. x is (B, T, D)."""
    input_weight, recurrent, b1, b2 = weights
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ input_weight.T + h @ recurrent.T + b1 + b2).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out, 1), (h, c)


def by_hand(model, ids, hidden, masks):
    """The network, with given masks on the recurrent weights."""
    x, ends = model.words.weight[ids], []
    for layer, state, mask in zip(model.layers, hidden, masks, strict=True):
        weights = [layer.weight_ih_l0, layer.weight_hh_l0 * mask, layer.bias_ih_l0, layer.bias_hh_l0]
        x, end = cell(weights, x, *state)
        ends.append(end)
    return x, ends


def test_without_dropout_it_is_an_lstm_by_its_equations():
    model, ids = net(), tokens()
    hidden = [(torch.randn_like(h), torch.randn_like(c)) for h, c in model.start(B)]
    read = model(ids, hidden)
    output, ends = by_hand(model, ids, hidden, [1.0] * 3)
    torch.testing.assert_close(read.output, output)
    torch.testing.assert_close(read.raw, output)
    for got, expected in zip(read.hidden, ends, strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(model.decode(output), output @ model.words.weight.T + model.bias)


def test_sizes_of_the_paper():
    for words, millions in ((10_000, 24.2216), (33_278, 33.556078)):
        with torch.device("meta"):
            model = AWDLSTM(words)
        assert sum(p.numel() for p in model.parameters()) == round(millions * 1e6)
    assert [layer.hidden_size for layer in model.layers] == [1150, 1150, 400]


def effective(model):
    """The recurrent weights that each layer uses."""
    return [model._weights(layer)[1] for layer in model.layers]


def test_weight_drop_drops_the_right_fraction_in_training_and_none_in_evaluation():
    model = AWDLSTM(10, embedding=40, hidden=60, layers=3, weight_drop=0.3)
    for layer, weight in zip(model.layers, effective(model), strict=True):
        dropped = int((weight == 0).sum())
        assert stats.binomtest(dropped, weight.numel(), 0.3).pvalue > 1e-3
        kept = weight != 0
        torch.testing.assert_close(weight[kept], layer.weight_hh_l0[kept] / 0.7)
    assert not torch.equal(effective(model)[0], effective(model)[0])  # new in every pass
    model.eval()
    for layer, weight in zip(model.layers, effective(model), strict=True):
        assert torch.equal(weight, layer.weight_hh_l0)


def test_the_dropped_weights_are_the_ones_used():
    """Drop nearly everything: the state no longer depends on earlier tokens."""
    model = net(weight_drop=0.999999)
    ids = tokens()
    other = ids.clone()
    other[:, 0] = (other[:, 0] + 1) % WORDS
    with torch.no_grad():
        for layer in model.layers:  # and forget the cell as well
            size = layer.hidden_size
            layer.bias_ih_l0[size : 2 * size] = -1e9
        first, second = model(ids, model.start(B)).output, model(other, model.start(B)).output
    assert not torch.allclose(first[:, 0], second[:, 0])
    torch.testing.assert_close(first[:, 1:], second[:, 1:])


def test_one_training_step_equals_the_same_step_by_hand():
    """Gradients pass through the mask, and SGD updates the raw weights."""
    model, ids, target = net(weight_drop=0.5), tokens(), tokens()
    raw = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    masks = [F.dropout(torch.ones_like(layer.weight_hh_l0), 0.5) for layer in model.layers]
    torch.set_rng_state(state)
    output, _ = by_hand(model, ids, model.start(B), masks)
    F.cross_entropy(model.decode(output).flatten(0, 1), target.flatten()).backward()
    updated = [w - 0.5 * p.grad for w, p in zip(raw, model.parameters(), strict=True)]
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    sgd.zero_grad()
    read = model(ids, model.start(B))
    F.cross_entropy(model.decode(read.output).flatten(0, 1), target.flatten()).backward()
    sgd.step()
    for (name, got), expected in zip(model.named_parameters(), updated, strict=True):
        torch.testing.assert_close(got.detach(), expected, msg=name)
    assert all(isinstance(layer.weight_hh_l0, nn.Parameter) for layer in model.layers)
    gradient, mask = model.layers[0].weight_hh_l0.grad, masks[0]
    assert (gradient[mask == 0] == 0).all()
    assert (gradient[mask != 0] != 0).any()


def test_dropped_weights_are_contiguous_as_cudnn_needs_them():
    model = net(weight_drop=0.5)
    for layer in model.layers:
        parts = model._weights(layer)
        assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
        ends = [part.storage_offset() + part.numel() for part in parts]
        assert [part.storage_offset() for part in parts] == [0, *ends[:-1]]


@pytest.mark.parametrize("place", ["input_dropout", "hidden_dropout", "output_dropout"])
def test_locked_dropout_has_one_mask_for_all_steps(place):
    model = net(**{place: 0.4})
    ids = tokens()
    state = torch.get_rng_state()
    got = model(ids, model.start(B))
    torch.set_rng_state(state)

    def locked(x):  # (B, T, D), naively
        mask = torch.empty(1, B, x.shape[2]).double().bernoulli_(0.6)
        return torch.stack([x[:, t] * mask[0] / 0.6 for t in range(T)], 1)

    x = model.words.weight[ids]
    x = locked(x) if place == "input_dropout" else x
    for number, layer in enumerate(model.layers):
        raw, _ = layer.train()(x.transpose(0, 1))
        x = raw.transpose(0, 1)
        last = number == 2
        if (place == "hidden_dropout" and not last) or (place == "output_dropout" and last):
            x = locked(x)
    torch.testing.assert_close(got.output, x)
    torch.testing.assert_close(got.raw, raw.transpose(0, 1))


def test_noise_on_word_vectors():
    model = net(noise=0.5, layers=1, embedding=50)
    ids = torch.zeros(40, 50, dtype=torch.long)
    seen = []
    model._locked = lambda x, p, columns: seen.append(x) or x
    model(ids, model.start(40))
    noise = seen[0].transpose(0, 1) - model.words.weight[0]
    assert stats.kstest(noise.detach().flatten().numpy(), "norm", args=(0, 0.5)).pvalue > 1e-3
    model.eval()(ids, model.start(40))
    torch.testing.assert_close(seen[2].transpose(0, 1), model.words.weight[ids])


def test_copies_of_a_wide_batch_share_masks_and_noise():
    model = net(input_dropout=0.3, hidden_dropout=0.3, output_dropout=0.3, weight_drop=0.3, noise=0.1)
    ids = tokens()
    wide = model(ids.repeat(3, 1), model.start(3 * B), columns=B)
    for copy in wide.output.chunk(3)[1:]:
        torch.testing.assert_close(copy, wide.output[:B])
    assert not torch.allclose(wide.output[0], wide.output[1])


def test_dropout_and_noise_are_off_in_evaluation():
    model = net(input_dropout=0.3, hidden_dropout=0.3, output_dropout=0.3, weight_drop=0.3, noise=0.1).eval()
    ids = tokens()
    read = model(ids, model.start(B))
    torch.testing.assert_close(read.output, by_hand(model, ids, model.start(B), [1.0] * 3)[0])
    model.decode(read.output).sum().backward()  # dynamic evaluation needs gradients in evaluation mode
    assert all(p.grad is not None for p in model.parameters())


def test_adversarial_softmax_against_an_explicit_worst_vector():
    """Moving the target's embedding by d = -epsilon |w| h / |h| gives the same value and gradients. No d is worse."""
    epsilon = 0.3
    output = torch.randn(5, 8, dtype=torch.double, requires_grad=True)
    weight = torch.randn(WORDS, 8, dtype=torch.double, requires_grad=True)
    target = torch.tensor([3, 3, 3, 7, 0])  # a repeated word, which a table of noise would overwrite
    loss = F.cross_entropy(adversarial_scores(output @ weight.T, target, output, weight, epsilon), target)
    got = torch.autograd.grad(loss, (output, weight))
    total = 0
    for h, y in zip(output, target, strict=True):
        d = (-epsilon * weight[y].norm() * h / h.norm()).detach()
        scores = [(weight[v] + (d if v == y else 0)) @ h for v in range(WORDS)]
        total = total - torch.stack(scores).log_softmax(0)[y] / 5
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(got, torch.autograd.grad(total, (output, weight)))
    h, y = output[0].detach(), target[0]
    for _ in range(50):
        d = F.normalize(torch.randn(8, dtype=torch.double), dim=0) * epsilon * weight[y].norm()
        lowest = weight[y] @ h - epsilon * weight[y].norm() * h.norm()
        assert (weight[y] + d) @ h >= lowest - 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"), [({"weight_drop": 1.0}, "at least 0 and below 1"), ({"noise": -1}, "from 0 to")]
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(LANGUAGE_MODELS, "model", "awd_lstm", words=10, **arguments)

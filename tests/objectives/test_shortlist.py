"""`MaxUp(shortlist=k)` against exact scoring, a sort, and the closed form of a linear loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import maxup as mu
from maxup.objectives.shortlist import FirstOrder, Shortlist
from tests.tiny import CLASSES, B, batch, batch_norm_net, dropout_net, generator, net, tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 1000))
def test_the_highest_scores_are_kept(size, m, seed):
    scores = torch.randn(m, 5, generator=generator(seed))
    kept = Shortlist(size)
    for i, score in enumerate(scores):
        kept.update({"index": torch.full((5,), i)}, score)
    best = scores.topk(min(size, m), 0)
    assert torch.equal(kept.copies.sort(0).values, best.indices.sort(0).values)
    assert torch.equal(torch.stack([draw["index"] for draw in kept.draws]), kept.copies)


def test_losses_to_first_order_are_exact_if_the_loss_is_linear():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1).double(), {"a": torch.randn(B, 3).double(), "b": torch.randn(B).double()}

    def forward(x):
        return model(torch.cat([x["a"], x["b"][:, None]], 1))

    estimate = FirstOrder((x, torch.zeros(B)), forward, lambda output, y: output[:, 0] + y)
    moved = {name: leaf + torch.randn(leaf.shape, generator=generator()) for name, leaf in x.items()}
    assert torch.allclose(estimate((moved, torch.ones(B))), forward(moved)[:, 0] + 1)  # with the target of the copy
    assert model.weight.grad is None


@pytest.mark.parametrize("score", ["loss", "easiest"])
def test_small_noise_selects_the_winners_of_exact_scoring(score):
    """The remainder is of order sigma^2, and the differences between copies are of order sigma."""
    (x, y), model = batch(), net()
    for size in (1, 3):
        exact, short = (
            mu.MaxUp(mu.Gaussian(1e-5), m=12, score=score, generator=generator(), **more)
            for more in ({}, {"shortlist": size})
        )
        for _ in range(3):
            a, b = exact.run(model, x, y), short.run(model, x, y)
            assert torch.equal(a.draw[0], b.draw[0])
            assert a.loss == b.loss


def test_a_large_gap_is_mostly_kept_and_always_checked():
    """Against all copies by hand: the winner is the worst of the shortlist, and its index is among all copies."""
    (x, y), model = batch(b=64), net()
    objective = mu.MaxUp(mu.Gaussian(0.3), m=20, shortlist=4, generator=generator(1))
    first = objective.run(model, x, y)
    assert objective.gap_kept == pytest.approx(first.report.gap_kept)
    assert 0.5 < objective.gap_kept <= 1
    assert first.report.copies == 20, "a step with a check trains on the winners of exact scoring"
    assert objective.state_dict()["gap_kept"] == objective.gap_kept
    draws = generator()
    draws.set_state(objective.generator.get_state())
    outcome = objective.run(model, x, y)
    noise = [mu.Gaussian(0.3).draw((x, y), draws)[0] for _ in range(20)]
    losses = torch.stack([mu.cross_entropy(model(x + z), y) for z in noise])  # (m, B)
    worst = outcome.worst
    assert torch.equal(torch.stack(noise)[worst.copy_of_all, torch.arange(64)], outcome.draw[0])
    chosen = losses.gather(0, worst.copy_of_all[None])[0]
    assert torch.allclose(chosen, losses.gather(0, worst.shortlist).max(0).values)
    assert outcome.report.copies == 4
    assert outcome.report.gap_kept is None
    gap = (chosen - losses.mean(0)).mean() / (losses.max(0).values - losses.mean(0)).mean()
    assert 0.5 < gap <= 1


def test_few_copies_are_all_scored():
    (x, y), model = batch(), net()
    exact, short = (
        mu.MaxUp(mu.Cutout(4), m=4, generator=generator(), **more) for more in ({}, {"shortlist": 4})
    )  # fmt: skip
    assert torch.equal(exact.select(model, x, y)[0], short.select(model, x, y)[0])
    assert short.gap_kept is None


@pytest.mark.parametrize("build", [batch_norm_net, dropout_net])
def test_ranking_leaves_no_trace(build):
    (x, y), model = batch(), build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state()
    objective = mu.MaxUp(mu.Gaussian(0.1), m=6, shortlist=2)
    for _ in range(2):
        objective.select(model, x, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(states, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not x.requires_grad
    if build is dropout_net:
        assert objective.run(model, x, y).report.replay_exact, "the masks of the training pass"


def test_mixed_labels_and_several_copies_per_pass():
    (x, y), model = batch(b=32), net()
    settings = {"m": 12, "shortlist": 4, "score": "kl"}
    one, wide = (mu.MaxUp(mu.CutMix(CLASSES), generator=generator(), chunk_size=k, **settings) for k in (1, 3))
    for _ in range(2):
        a, b = one.run(model, x, y), wide.run(model, x, y)
        assert torch.allclose(a.losses, b.losses)
        assert torch.equal(a.worst.copy, b.worst.copy)
    assert one.gap_kept > 0.2


def test_small_gradients_in_half_precision_do_not_vanish():
    """1e-8 is 0 in float16."""
    x = torch.zeros(B, 3, dtype=torch.float16)
    estimate = FirstOrder((x, None), lambda x: x * 1e-4 * 1e-4, lambda output, y: output.float().sum(1))
    assert torch.allclose(estimate((x + 1, None)), torch.full((B,), 3e-8), rtol=1e-2)


def flat_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, CLASSES))


def kept_with(forward=None, loss_fn=mu.cross_entropy, **more):
    """The share of the gap that a shortlist of 3 keeps of 25 copies with small noise: about 1 if ranking works."""
    x = {"f": torch.randn(32, 20, generator=generator()), **more}
    objective = mu.MaxUp(
        mu.Gaussian(0.05, key="f"), m=25, shortlist=3, loss_fn=loss_fn,
        forward=forward or (lambda model, x: model(x["f"])), generator=generator(2),
    )  # fmt: skip
    objective.select(flat_net(), x, torch.arange(32) % CLASSES)
    return objective.gap_kept


def test_leaves_that_do_not_change_have_no_effect():
    mask = torch.zeros(32, 20)
    mask[:, 15:] = -torch.inf
    assert kept_with(lambda model, x: model(x["f"] * x["mask"].exp()), mask=mask) > 0.95
    zeros = torch.zeros(32)  # the gradient of the square root is infinite
    assert kept_with(lambda model, x: model(x["f"]) + x["d"].sqrt()[:, None], d=zeros) > 0.95


def test_a_random_loss_is_evaluated_once():
    noise = torch.nn.functional.cross_entropy

    def loss(output, y):
        return noise(output + 0.3 * torch.randn(output.shape), y, reduction="none")

    assert kept_with(loss_fn=loss) > 0.95


def test_models_that_change_their_input_in_place():
    def forward(model, x):
        x["f"].mul_(2)
        with torch.no_grad():
            x["f"].clamp_(-3, 3)
        return model(x["f"])

    class Cloned(mu.Gaussian):  # otherwise exact scoring would change x as well
        def apply(self, batch, draw):
            x, y = super().apply(batch, draw)
            return {name: leaf.clone() for name, leaf in x.items()}, y

    x, y = {"f": torch.randn(32, 20)}, torch.arange(32) % CLASSES
    before = x["f"].clone()
    mu.MaxUp(Cloned(0.1, key="f"), m=8, shortlist=2, forward=forward).select(flat_net(), x, y)
    assert torch.equal(x["f"], before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_model_without_a_gradient_by_its_input_is_refused(context):
    model, x, y = flat_net(), torch.randn(32, 20), torch.arange(32) % CLASSES

    def forward(model, x):
        with torch.no_grad():
            hidden = model[:2](x)
        return model[2](hidden)

    with pytest.raises(ValueError, match="the model computes none"):
        mu.MaxUp(mu.Gaussian(0.1), m=8, shortlist=2, forward=forward).select(model, x, y)
    with context():
        objective = mu.MaxUp(mu.Gaussian(0.1), m=8, shortlist=2)
        if context is torch.no_grad:
            assert objective.select(model, x, y)[0].shape == x.shape
        else:
            with pytest.raises(ValueError, match="the model computes none"):
                objective.select(model, x, y)


def test_few_distinct_copies_do_not_look_like_a_perturbation_without_effect():
    """The best two of twelve random flips are the same flip."""
    (x, y), model = batch(), net()
    objective = mu.MaxUp(mu.CropFlip(padding=0), m=12, shortlist=2)
    objective.load_state_dict({"seed": 0, "step": 1})
    objective.select(model, x, y)  # warnings are errors


def test_token_ids_are_refused_in_a_warmup_too():
    embedding = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, CLASSES))
    objective = mu.MaxUp(mu.TokenDropout(0.2, mask_id=0), m=mu.warmup(8, steps=9), shortlist=2)
    with pytest.raises(TypeError, match="remove shortlist"):
        objective.select(embedding, *tokens())


def test_checks_of_the_first_scoring_survive_an_error():
    """A model that fails once, and counts its calls in an attribute, which cannot be restored."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(3, CLASSES), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("not yet")
            return self.linear(x)

    model, x, y = Counting(), torch.randn(B, 3), torch.arange(B) % CLASSES
    objective = mu.MaxUp(mu.Gaussian(0.1), m=8, shortlist=2)
    with pytest.raises(RuntimeError, match="not yet"):
        objective.select(model, x, y)
    with pytest.warns(mu.MaxUpWarning, match="the forward pass changed"):
        objective.select(model, x, y)


def test_two_checks_in_a_row_that_keep_little_give_one_warning(monkeypatch):
    """Half the size averages noise over 2 x 2 pixels, so it ranks copies of a network that sees single pixels badly."""
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 1)
    x, y = torch.zeros(32, 1, 96, 96), torch.randint(2, (32,), generator=generator())

    class Checkerboard(torch.nn.Module):
        def forward(self, x):
            pattern = (-1.0) ** torch.arange(x.shape[2])[:, None] * (-1.0) ** torch.arange(x.shape[3])
            return torch.stack([(x * pattern).mean((1, 2, 3)), x.mean((1, 2, 3)) * 0.01], 1)

    objective = mu.MaxUp(mu.Gaussian(0.5), m=8, fast=True, generator=generator())
    objective.select(Checkerboard(), x, y)  # one check is not enough
    with pytest.warns(mu.MaxUpWarning, match=r"fast=True kept -?0\.\d\d of the loss gap.*remove fast=True"):
        objective.select(Checkerboard(), x, y)
    objective.select(Checkerboard(), x, y)  # once


def test_the_first_approximate_step_is_checked_if_m_rises():
    (x, y), model = batch(), net()
    objective = mu.MaxUp(mu.Gaussian(0.1), m=lambda step: 2 if step < 3 else 12, shortlist=4)
    kept = [objective.select(model, x, y) and objective.gap_kept for _ in range(4)]
    assert kept[:3] == [None] * 3
    assert 0 < kept[3] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shortlist": 0}, "shortlist"),
        ({"shortlist": 2, "fast": True}, "remove one of them"),
        ({"shortlist": 2, "strategy": "retain"}, "shortlist=2 needs strategy='recompute'"),
    ],
)
def test_settings_that_contradict_each_other(arguments, message):
    with pytest.raises(ValueError, match=message):
        mu.MaxUp(mu.Gaussian(0.1), m=8, **arguments)


def test_inputs_that_have_no_first_order_are_refused():
    embedding = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, CLASSES))
    with pytest.raises(TypeError, match=r"x holds torch\.int64; remove shortlist"):
        mu.MaxUp(mu.TokenDropout(0.2, mask_id=0), m=8, shortlist=2).select(embedding, *tokens())
    (x, y), inside = batch(), mu.FeatureNoise(0.1, layer="0")
    with pytest.raises(ValueError, match="acts inside the model; remove shortlist"):
        mu.MaxUp(inside, m=8, shortlist=2)

    class Smaller(mu.Gaussian):
        def apply(self, batch, draw):
            return batch[0][..., 1:], batch[1]

    with pytest.raises(ValueError, match="needs copies of the shape of x"):
        mu.MaxUp(Smaller(0.1), m=8, shortlist=2).select(net(), x, y)

"""Every setting of MaxUp, with a test that fails without it, and the four ways to call it."""

import copy
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import maxup as mu
from maxup import CutMix, Gaussian, MaxUp
from tests.tiny import CLASSES, B, batch, batch_norm_net, dropout_net, generator, gradients, net, soft, text_net, tokens

probing = pytest.mark.filterwarnings("ignore:MaxUp runs the model several times")  # a Probe has state on purpose


class Probe(nn.Module):
    """Records the forward passes of the inner model."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.sizes, self.dtypes = inner, [], []

    def forward(self, x):
        out = self.inner(x)
        self.sizes.append(len(x))
        self.dtypes.append(out.dtype)
        return out


# --- the four calls


def test_the_four_calls_agree():
    model, (x, y) = net(), batch()
    loss = MaxUp(Gaussian(0.3), m=4, generator=generator())(model, x, y)
    worst_x, worst_y = MaxUp(Gaussian(0.3), m=4, generator=generator()).select(model, x, y)
    assert F.cross_entropy(model(worst_x), worst_y).item() == pytest.approx(loss.item(), abs=1e-12)
    with MaxUp(Gaussian(0.3), m=4, generator=generator()).selected(model, x, y) as (context_x, _):
        assert torch.equal(context_x, worst_x)
    outcome = MaxUp(Gaussian(0.3), m=4, generator=generator()).run(model, x, y)
    assert torch.equal(outcome.loss, loss)
    assert torch.equal(outcome.output, model(worst_x))
    assert torch.equal(x + outcome.draw[0], worst_x)


def test_one_copy_is_standard_augmentation_at_no_cost():
    model, (x, y) = Probe(net()), batch()
    got_x, got_y = MaxUp(Gaussian(0.3), m=1, generator=generator(3)).select(model, x, y)
    assert model.sizes == []
    expected_x, expected_y = Gaussian(0.3)(x, y, generator=generator(3))
    assert torch.equal(got_x, expected_x)
    assert torch.equal(got_y, expected_y)


def test_more_copies_are_worse():
    model, (x, y) = net(), batch()
    losses = [MaxUp(Gaussian(0.5), m=m, generator=generator())(model, x, y).item() for m in (1, 4, 16, 64)]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]


@probing
def test_m_can_follow_the_step():
    model, (x, y) = Probe(net()), batch()
    objective = MaxUp(Gaussian(0.1), m=lambda step: [1, 3, 2][step])
    for passes in (1, 5, 3):  # m copies (none for m = 1), the training pass, and once the winners again
        model.sizes.clear()
        objective(model, x, y)
        assert len(model.sizes) == passes
    assert objective.step == 3


@pytest.mark.parametrize("shape", ["tuple", "dict", "mapping"])
def test_batches_of_any_shape(shape):
    x, y = batch()
    model = net()
    plain, _ = MaxUp(Gaussian(0.3), m=4, generator=generator()).select(model, x, y)
    ids = torch.arange(B)
    if shape == "tuple":
        batch_x, forward, leaf = (x, ids), lambda model, x: model(x[0]), 0
    else:
        batch_x, leaf = {"pixels": x, "ids": ids}, "pixels"
        batch_x = UserDict(batch_x) if shape == "mapping" else batch_x
        forward = lambda model, x: model(x["pixels"])  # noqa: E731
    got, _ = MaxUp(Gaussian(0.3), m=4, forward=forward, generator=generator()).select(model, batch_x, y)
    assert torch.equal(got[leaf], plain)


def test_targets_may_be_a_dict_with_a_loss_for_it():
    x, y = batch()

    def loss(output, target):
        return target["weight"] * F.cross_entropy(output, target["label"], reduction="none")

    outcome = MaxUp(Gaussian(0.3), m=4, loss_fn=loss).run(net(), x, UserDict({"label": y, "weight": torch.rand(B)}))
    assert outcome.losses.shape == (B,)
    assert outcome.report.replay_exact


# --- settings


@pytest.mark.parametrize("norm", ["batch", "running"])
def test_norm_decides_the_statistics_of_scoring(norm):
    model, (x, y) = batch_norm_net(), batch()
    model(10 * x)  # running statistics far from this batch's
    objective = MaxUp(Gaussian(0.3), m=4, norm=norm, generator=generator())
    outcome = objective.run(copy.deepcopy(model), x, y)
    g, reference = generator(), copy.deepcopy(model)
    reference.train(norm == "batch")
    for losses in outcome.worst.losses:
        copy_x, _ = Gaussian(0.3)(x, y, generator=g)
        torch.testing.assert_close(losses, mu.cross_entropy(copy.deepcopy(reference)(copy_x), y))


@probing
def test_strategy_retain_makes_one_wide_pass():
    model, (x, y) = Probe(net()), batch()
    objective = MaxUp(Gaussian(0.3), m=4, strategy="retain")
    objective(model, x, y)
    assert model.sizes == [B, 4 * B]  # on the first batch of a shape, one copy runs alone first
    objective(model, x, y)
    assert model.sizes == [B, 4 * B, 4 * B]
    objective = MaxUp(Gaussian(0.3), m=4)
    objective(model, x, y)
    model.sizes.clear()
    objective(model, x, y)
    assert model.sizes == [B] * 5


def test_retain_returns_the_winners_rows_of_everything():
    model, (x, y) = net(), batch()
    ways = [
        MaxUp(CutMix(CLASSES), m=4, strategy=s, generator=generator()).run(model, x, y) for s in ("recompute", "retain")
    ]
    for field in ("loss", "losses", "output", "target"):
        torch.testing.assert_close(getattr(ways[0], field), getattr(ways[1], field))
    assert torch.equal(ways[0].draw["box"], ways[1].draw["box"])
    assert ways[0].report.wins == ways[1].report.wins


@probing
def test_chunk_scores_several_copies_in_a_pass():
    model, (x, y) = Probe(net()), batch()
    chunked = MaxUp(Gaussian(0.3), m=5, chunk_size=2, generator=generator()).select(model, x, y)
    assert model.sizes == [B, 2 * B, 2 * B, B, B]  # first one copy alone; last the winners again
    assert torch.equal(chunked[0], MaxUp(Gaussian(0.3), m=5, generator=generator()).select(model, x, y)[0])


@probing
def test_dtype_is_the_precision_of_scoring_only():
    model, (x, y) = Probe(net(dtype=torch.float32)), batch(dtype=torch.float32)
    MaxUp(Gaussian(0.3), m=2, dtype=torch.bfloat16)(model, x, y)
    assert model.dtypes == [torch.bfloat16] * 3 + [torch.float32]  # two copies, the winners again, training
    model.dtypes.clear()
    with torch.autocast("cpu", torch.bfloat16):
        MaxUp(Gaussian(0.3), m=2, dtype=torch.float32)(model, x, y)
    assert model.dtypes == [torch.float32] * 3 + [torch.bfloat16]


@pytest.mark.filterwarnings("ignore:all 2 copies")  # equal losses are the point
def test_score_kl_does_not_prefer_uncertain_labels():
    """Of copies with equal cross-entropy, KL chooses the certain label, which the model fits worse."""

    class Labels:
        """The first copy has a label of two halves, the second a one-hot label."""

        def draw(self, batch, generator):
            self.count = getattr(self, "count", -1) + 1
            return torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)[self.count % 2].repeat(B, 1)

        def apply(self, batch, draw):
            return batch[0], draw

    logits = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)

    def forward(model, x):
        return logits.expand(len(x), 3)

    x, y = batch()
    # Both labels' cross-entropy is the log-partition; the mixed label's KL is lower by its entropy, log 2.
    by_kl = MaxUp(Labels(), m=2, score="kl", forward=forward).run(nn.Identity(), x, y)
    by_loss = MaxUp(Labels(), m=2, score="loss", forward=forward).run(nn.Identity(), x, y)
    assert by_kl.report.wins == [0, B]
    assert by_loss.report.wins == [B, 0]


def test_score_kl_changes_nothing_for_class_ids():
    model, (x, y) = net(), batch()
    by = [MaxUp(Gaussian(0.3), m=4, score=r, generator=generator()).select(model, x, y)[0] for r in ("kl", "loss")]
    assert torch.equal(*by)


def test_forward_defines_how_to_call_the_model():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, *, pixel_values):
            return {"logits": self.net(pixel_values)}

    x, y = batch()
    objective = MaxUp(Gaussian(0.3), m=3, forward=lambda model, x: model(**x)["logits"])
    assert objective.select(Named(), {"pixel_values": x}, y)[0]["pixel_values"].shape == x.shape


def test_loss_fn_decides_which_copy_is_worst():
    model, (x, y) = net(), batch()
    best = MaxUp(Gaussian(0.3), m=6, loss_fn=lambda o, t: -mu.cross_entropy(o, t), generator=generator()).select(
        model, x, y
    )
    worst = MaxUp(Gaussian(0.3), m=6, generator=generator()).select(model, x, y)
    losses = [mu.cross_entropy(model(copy_x), y) for copy_x, _ in (best, worst)]
    assert (losses[0] < losses[1]).all()


def test_generator_makes_draws_repeatable_and_is_used():
    model, (x, y) = net(), batch()
    g = generator(5)
    before = g.get_state()
    first = MaxUp(Gaussian(0.3), generator=g).select(model, x, y)[0]
    assert not torch.equal(before, g.get_state())
    assert torch.equal(first, MaxUp(Gaussian(0.3), generator=generator(5)).select(model, x, y)[0])


# --- dropout, NaN, in-model perturbations, state


@pytest.mark.parametrize("precision", ["float64", "autocast"])
def test_with_dropout_the_training_loss_is_the_score(precision):
    dtype = torch.float64 if precision == "float64" else torch.float32
    model, (x, y) = dropout_net(dtype=dtype), batch(dtype=dtype)
    objective = MaxUp(Gaussian(0.3), m=5)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        assert objective.run(model, x, y).report.replay_exact
        assert not torch.equal(model(x), model(x))  # dropout is really on


def test_select_and_a_dropout_forward_replay_the_score():
    model, (x, y) = dropout_net(), batch()
    seen = []

    def loss(output, target):
        seen.append(mu.cross_entropy(output, target))
        return seen[-1]

    worst_x, worst_y = MaxUp(Gaussian(0.3), m=5, loss_fn=loss).select(model, x, y)
    mine = mu.cross_entropy(model(worst_x), worst_y)
    assert torch.equal(mine, torch.stack(seen).amax(0))


def test_a_copy_with_a_nan_loss_is_chosen():
    model, (x, y) = net(), batch()
    calls = []

    def loss(output, target):
        calls.append(1)
        return mu.cross_entropy(output, target) * (float("nan") if len(calls) == 2 else 1.0)

    assert MaxUp(Gaussian(0.3), m=4, loss_fn=loss).run(model, x, y).report.wins == [0, B, 0, 0]


def test_in_model_perturbations_work_with_selected_but_not_select():
    drop, model = mu.EmbeddingDropout(0.5), text_net()
    drop.attach(model)
    ids, y = tokens()
    objective = MaxUp(drop, m=6, generator=generator())
    with pytest.raises(TypeError, match="acts inside the model"):
        objective.select(model, ids, y)
    with objective.selected(model, ids, y) as (x, t):
        inside = mu.cross_entropy(model(x), t).mean().item()
        assert x is ids
    assert drop.hooks[0].draw is None
    assert inside == pytest.approx(MaxUp(drop, m=6, generator=generator())(model, ids, y).item())
    with pytest.raises(RuntimeError), objective.selected(model, ids, y):
        raise RuntimeError("raised by the caller")
    assert drop.hooks[0].draw is None


def test_state_dict_resumes_the_same_draws():
    model, (x, y) = net(), batch()
    one = MaxUp(Gaussian(0.3), m=mu.warmup(3, steps=2))
    for _ in range(2):
        one.select(model, x, y)
    state = copy.deepcopy(one.state_dict())
    expected = [one.select(model, x, y)[0] for _ in range(3)]
    other = MaxUp(Gaussian(0.3), m=mu.warmup(3, steps=2))
    other.load_state_dict(state)
    assert other.step == 2
    for e in expected:
        assert torch.equal(other.select(model, x, y)[0], e)


def test_gradient_accumulation_adds_up():
    model, (x, y) = net(), batch()
    objective = MaxUp(Gaussian(0.3), m=3, generator=generator())
    for part in (slice(0, 3), slice(3, 6)):
        (objective(model, x[part], y[part]) / 2).backward()
    accumulated = gradients(model)
    model.zero_grad()
    fresh = MaxUp(Gaussian(0.3), m=3, generator=generator())
    sum(fresh(model, x[part], y[part]) / 2 for part in (slice(0, 3), slice(3, 6))).backward()
    for a, b in zip(accumulated, gradients(model), strict=True):
        torch.testing.assert_close(a, b)


def test_channels_last_is_preserved():
    x, y = batch(dtype=torch.float32)
    x = x.to(memory_format=torch.channels_last)
    model = net(dtype=torch.float32).to(memory_format=torch.channels_last)
    worst_x, _ = MaxUp(mu.Compose(mu.CropFlip(2), CutMix(CLASSES)), m=3).select(model, x, y)
    assert worst_x.is_contiguous(memory_format=torch.channels_last)


def test_with_mixed_labels_under_autocast_the_training_loss_is_the_score():
    x, y = batch(dtype=torch.float32)
    model = net(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        objective = MaxUp(mu.MixUp(CLASSES), m=3, generator=generator())
        outcome = objective.run(model, x, y)
        worst_x, worst_y = MaxUp(mu.MixUp(CLASSES), m=3, generator=generator()).select(model, x, y)
        mine = F.cross_entropy(model(worst_x), worst_y, reduction="none")
    assert torch.equal(mine, outcome.losses)


def test_leaves_without_a_batch_dimension_are_unchanged():
    x, y = batch()
    given = {"pixels": x, "temperature": torch.tensor(2.0)}
    worst, _ = MaxUp(Gaussian(0.3), m=3, forward=lambda model, x: model(x["pixels"])).select(net(), given, y)
    assert worst["temperature"] is given["temperature"]


def test_soft_targets_of_another_precision():
    x, y = batch(dtype=torch.float32)
    assert MaxUp(Gaussian(0.1), m=3)(net(dtype=torch.float32), x, soft(y, torch.float64)).dtype == torch.float32

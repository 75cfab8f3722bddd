"""The losses against F.cross_entropy and Hugging Face models, with ignored targets."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import maxup as mu
from maxup.losses import mean_loss
from tests.oracles import torchvision_v2
from tests.tiny import generator

CLASSES = 4
LAYERS = {"bert": "bert.embeddings.word_embeddings", "gpt2": "transformer.wte"}


def logits_and_targets(shape, ignored, dtype=torch.float64, seed=0):
    """Return logits (B, C, ...) and class ids (B, ...); each id is ignored with probability `ignored`."""
    g = generator(seed)
    b, *rest = shape
    target = torch.randint(CLASSES, shape, generator=g)
    target[torch.rand(shape, generator=g) < ignored] = -100
    return torch.randn(b, CLASSES, *rest, generator=g, dtype=dtype), target


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2), (5, 2, 3, 2)])
@pytest.mark.parametrize("ignored", [0.0, 0.5, 1.0])
def test_the_loss_per_example_is_that_of_torch(shape, ignored):
    output, target = logits_and_targets(shape, ignored)
    found = mu.cross_entropy(output, target)
    expected = torch.stack([F.cross_entropy(o[None], t[None]) for o, t in zip(output, target, strict=True)])
    torch.testing.assert_close(found, expected.nan_to_num(0.0))  # torch's mean over no positions is NaN, ours 0
    assert (expected.isnan() == (target.reshape(len(target), -1) == -100).all(1)).all()


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
@pytest.mark.parametrize("mixed", [False, True])
def test_label_smoothing_is_that_of_torch(shape, mixed):
    output, target = logits_and_targets(shape, 0.0 if mixed else 0.4)
    target = torch.randn_like(output).softmax(1) if mixed else target
    expected = [F.cross_entropy(o[None], t[None], label_smoothing=0.3) for o, t in zip(output, target, strict=True)]
    found = mu.cross_entropy(output, target, label_smoothing=0.3)
    torch.testing.assert_close(found, torch.stack(expected).nan_to_num(0.0))


def test_label_smoothing_of_tokens_is_that_of_torch():
    output, target = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    target[0, 2:] = -100
    for found, o, t in (
        (mu.token_cross_entropy(output, target, label_smoothing=0.3), output, target),
        (mu.next_token_cross_entropy(output, target, label_smoothing=0.3), output[:, :-1], target[:, 1:]),
    ):
        expected = [F.cross_entropy(o[i], t[i], label_smoothing=0.3) for i in range(3)]
        torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("shape", [(5, CLASSES), (5, CLASSES, 3), (5, CLASSES, 3, 2)])
def test_probabilities(shape):
    output, target = torch.randn(shape), torch.randn(shape).softmax(1)
    expected = torch.stack([F.cross_entropy(o[None], t[None]) for o, t in zip(output, target, strict=True)])
    losses = mu.cross_entropy(output, target)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(mean_loss(mu.cross_entropy, losses, target), F.cross_entropy(output, target))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    ignored=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 1000),
)
def test_the_mean_of_a_batch_is_that_of_torch(shape, ignored, seed):
    output, target = logits_and_targets(shape, ignored, seed=seed)
    found = mean_loss(mu.cross_entropy, mu.cross_entropy(output, target), target)
    torch.testing.assert_close(found, F.cross_entropy(output, target).nan_to_num(0.0))


@pytest.mark.parametrize("loss", [mu.cross_entropy, mu.token_cross_entropy, mu.next_token_cross_entropy])
def test_the_mean_with_label_smoothing_is_that_of_torch(loss):
    """Arguments given with `functools.partial` change neither the mean nor the checks."""
    logits, target = logits_and_targets((5, 6), 0.4)
    output = logits if loss is mu.cross_entropy else logits.transpose(1, 2)
    first = 1 if loss is mu.next_token_cross_entropy else 0
    expected = F.cross_entropy(logits[..., : 6 - first], target[:, first:], label_smoothing=0.1)
    objective = mu.MaxUp(mu.Gaussian(0.0), m=1, loss_fn=partial(loss, label_smoothing=0.1))
    torch.testing.assert_close(objective(nn.Identity(), output, target), expected)
    with pytest.raises(ValueError, match=rf"range from .* to {CLASSES}"):
        mu.MaxUp(mu.Gaussian(0.0), m=1, loss_fn=partial(loss, label_smoothing=0.1))(
            nn.Identity(), output, torch.full_like(target, CLASSES)
        )


def test_the_mean_without_ignored_targets_is_exactly_the_mean():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        losses, target = torch.rand(37, dtype=dtype), torch.randint(CLASSES, (37,))
        assert torch.equal(mean_loss(mu.cross_entropy, losses, target), losses.mean())
        assert torch.equal(mean_loss(F.mse_loss, losses, target), losses.mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_copies_of_a_model_in_half_precision_do_not_tie(dtype):
    """Rounded losses of similar copies would be equal, and the first copy would win."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 100)).to(dtype)
    x, y = torch.randn(256, 64).to(dtype), torch.randint(100, (256,))
    scores = torch.stack(mu.MaxUp(mu.Gaussian(0.02), m=4, generator=generator()).run(model, x, y).worst.all_scores)
    assert (scores == scores.max(0).values).sum(0).max() == 1


def test_a_large_map_in_half_precision_does_not_overflow():
    output, target = torch.zeros(1, CLASSES, 300, 300, dtype=torch.float16), torch.zeros(1, 300, 300).long()
    output[:, 0] = -20
    losses = mu.cross_entropy(output, target)
    assert 20 < float(losses) < 23
    torch.testing.assert_close(mean_loss(mu.cross_entropy, losses, target), losses[0])


class Positions(nn.Module):
    """Logits for every position of x (B, 3, ...)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, CLASSES, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x.movedim(1, -1)).tanh().movedim(-1, 1)


@pytest.mark.parametrize("shape", [(6,), (6, 5), (6, 4, 4)])
@pytest.mark.parametrize("strategy", ["recompute", "retain"])
def test_maxup_is_the_naive_maximum_with_the_mean_of_torch(shape, strategy):
    """Draw all copies, take the worst by its mean over labels that count, and compute F.cross_entropy."""
    _, y = logits_and_targets(shape, 0.4)
    y[0] = -100  # an example that does not count
    x = torch.rand(6, 3, *shape[1:], generator=generator(), dtype=torch.float64)
    model, naive = Positions(), Positions()
    loss = mu.MaxUp(mu.Gaussian(0.5), m=4, strategy=strategy, generator=generator())(model, x, y)
    loss.backward()

    g, noise = generator(), mu.Gaussian(0.5)
    copies = [noise.apply((x, y), noise.draw((x, y), g))[0] for _ in range(4)]
    worst = []
    for i in range(6):
        losses = [F.cross_entropy(naive(c[i : i + 1]), y[i : i + 1]) for c in copies]
        worst.append(copies[int(torch.stack(losses).nan_to_num(0.0).argmax())][i])
    expected = F.cross_entropy(naive(torch.stack(worst)), y)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(model.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mu.MaxUp(mu.Gaussian(0.1), m=2),
        lambda: mu.Average(mu.Gaussian(0.1), m=2),
        lambda: mu.Adversarial(0.1, steps=2),
        lambda: mu.SmoothAdv(0.1, 0.2),
        lambda: mu.HardExamples(0.5),
    ],
)
@pytest.mark.filterwarnings("ignore:.*same loss")  # as all copies of such a batch have
def test_a_batch_of_ignored_targets_has_loss_and_gradient_zero(make):
    model = Positions()
    loss = make()(model, torch.rand(6, 3, dtype=torch.float64), torch.full((6,), -100))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all((p.grad == 0).all() for p in model.parameters())


@pytest.mark.parametrize("score", ["loss", "kl"])
def test_probability_maps(score):
    x, y = torch.rand(6, 3, 4, 4, dtype=torch.float64), torch.rand(6, CLASSES, 4, 4, dtype=torch.float64).softmax(1)
    outcome = mu.MaxUp(mu.Gaussian(0.5), m=3, score=score).run(Positions(), x, y)
    expected = torch.special.entr(y).sum() / (6 * 4 * 4)
    assert outcome.report.label_entropy == pytest.approx(float(expected))
    assert outcome.report.replay_error < 1e-12


def test_token_losses_by_hand():
    output, target = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    target[0, 2:], target[1] = -100, -100
    aligned, shifted = mu.token_cross_entropy(output, target), mu.next_token_cross_entropy(output, target)
    log_p = output.log_softmax(2)
    for i in range(3):
        now = [-log_p[i, t, target[i, t]] for t in range(5) if target[i, t] >= 0]
        later = [-log_p[i, t - 1, target[i, t]] for t in range(1, 5) if target[i, t] >= 0]
        for found, terms in ((aligned[i], now), (shifted[i], later)):
            assert float(found) == pytest.approx(float(sum(terms)) / max(1, len(terms)), abs=1e-6)


def tiny(name):
    """Return a Hugging Face language model without dropout, its loss, and inputs."""
    torchvision_v2()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(5, 20, (4, 6))}
    if name == "bert":
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = transformers.BertConfig(
            vocab_size=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
        )
        return transformers.BertForMaskedLM(config), mu.token_cross_entropy, tokens
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), mu.next_token_cross_entropy, tokens


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_the_loss_of_hugging_face(name):
    """The loss equals the one that the model computes; sequences have different numbers of labels."""
    model, loss, x = tiny(name)
    labels = x["input_ids"].clone()
    labels[0, 1:4], labels[1] = -100, -100
    with torch.no_grad():
        expected = model(**x, labels=labels).loss
        for i in (0, 2, 3):  # the loss of a sequence is that of a batch of one
            alone = model(input_ids=x["input_ids"][i : i + 1], labels=labels[i : i + 1])
            torch.testing.assert_close(loss(alone.logits, labels[i : i + 1])[0], alone.loss)
        objective = mu.MaxUp(
            mu.EmbeddingDropout(0.0, layer=LAYERS[name]), m=2, forward=lambda model, x: model(**x).logits, loss_fn=loss
        )
        objective.perturbation.attach(model)
        torch.testing.assert_close(objective(model.train(), x, labels), expected)

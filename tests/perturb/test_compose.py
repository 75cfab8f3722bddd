import pytest
import torch

import maxup as mu
from tests.tiny import B, batch, generator, net


def test_parts_act_in_order():
    x, y = torch.ones(2, 1, 4, 4), torch.zeros(2)
    both = mu.Compose(mu.Transform(lambda x: x * 3), mu.Transform(lambda x: x + 1))
    assert both(x, y)[0].unique().tolist() == [4]


def test_a_winner_keeps_its_partner_as_its_own_copy_left_it():
    """CutMix after a crop: rebuilding from the parts' draws would paste the partner's winning crop instead."""
    compose, model = mu.Compose(mu.CropFlip(3), mu.CutMix(4)), net()
    x, y = batch()
    outcome = mu.MaxUp(compose, 5, generator=generator(1)).run(model, x, y)
    assert len({int(c) for c in outcome.worst.copy}) > 1
    assert outcome.report.replay_exact


def test_nested_compositions_are_flat_and_know_their_attached_parts():
    inner, model = mu.FeatureNoise(0.1, layer="1"), net()
    inner.attach(model)
    compose = mu.Compose(mu.Cutout(2), mu.Compose(mu.Gaussian(0.1), inner))
    x, y = batch()
    outcome = mu.MaxUp(compose, 4, generator=generator()).run(model, x, y)
    assert outcome.report.replay_exact
    without = compose.apply((x, y), outcome.draw)[0]
    inner.hooks[0].draw = None
    assert not torch.equal(outcome.output, model(without))  # the attached part acted too
    assert inner.hooks[0].draw is None
    with pytest.raises(TypeError, match="acts inside the model"):
        mu.MaxUp(compose).select(model, x, y)


def test_dict_batches_and_leaves_without_examples():
    x = {"image": torch.ones(B, 1, 4, 4), "ids": torch.arange(B), "scale": torch.tensor(2.0)}
    compose = mu.Compose(mu.Cutout(2, key="image"), mu.Gaussian(0.1, key="image"))
    new, _ = compose(x, torch.zeros(B))
    assert not torch.equal(new["image"], x["image"])
    assert torch.equal(new["ids"], x["ids"])
    assert new["scale"] is x["scale"]


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="nothing to compose"):
        mu.Compose()
    with pytest.raises(TypeError, match="a function is not a perturbation"):
        mu.Compose(lambda x: x)


def test_a_batch_is_mixed_at_one_layer_whatever_comes_before():
    """Every copy of a batch is mixed at the same layer, so that the winners' partners are unmixed as when scored."""
    mixup = mu.ManifoldMixup(["0", "1", "2"], num_classes=3)
    mixup.attach(torch.nn.Sequential(*[torch.nn.Linear(5, 5) for _ in range(3)]))
    both, generator = mu.Compose(mu.Gaussian(0.1), mixup), torch.Generator().manual_seed(0)
    batch = torch.rand(4, 5), torch.tensor([0, 1, 2, 0])
    chosen = set()
    for _ in range(20):
        layers = {int(both.draw(batch, generator)["inside"][0]["layer"][0]) for _ in range(8)}
        assert len(layers) == 1
        chosen |= layers
        mixup.clear()
    assert chosen == {0, 1, 2}

import pytest
import torch

import maxup as mu
from tests.tiny import B, batch, generator, net


def test_perturbations_apply_in_order():
    x, y = torch.ones(2, 1, 4, 4), torch.zeros(2)
    both = mu.Compose(mu.Transform(lambda x: x * 3), mu.Transform(lambda x: x + 1))
    assert both(x, y)[0].unique().tolist() == [4]


def test_a_worst_copy_keeps_the_partner_it_was_scored_with():
    """CutMix after a crop: replaying the draws of the parts would paste the crop of the partner's worst copy."""
    compose, model = mu.Compose(mu.CropFlip(3), mu.CutMix(4)), net()
    x, y = batch()
    outcome = mu.MaxUp(compose, 5, generator=generator(1)).run(model, x, y)
    assert len({int(c) for c in outcome.worst.copy}) > 1
    assert outcome.report.replay_exact


def test_nested_compositions_are_flattened_with_their_in_model_parts():
    inner, model = mu.FeatureNoise(0.1, layer="1"), net()
    inner.attach(model)
    compose = mu.Compose(mu.Cutout(2), mu.Compose(mu.Gaussian(0.1), inner))
    x, y = batch()
    outcome = mu.MaxUp(compose, 4, generator=generator()).run(model, x, y)
    assert outcome.report.replay_exact
    without = compose.apply((x, y), outcome.draw)[0]
    inner.hooks[0].draw = None
    assert not torch.equal(outcome.output, model(without))  # the in-model part was active
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


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="got no perturbations; pass at least one"):
        mu.Compose()
    with pytest.raises(TypeError, match="a function is not a perturbation"):
        mu.Compose(lambda x: x)


def test_a_batch_is_mixed_at_one_layer_whatever_comes_before():
    """Every copy of a batch is mixed at the same layer, so that partners are unmixed as in scoring."""
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


def test_a_part_must_keep_the_structure_of_the_batch():
    """The result is put into the structure of the original batch, so the second target would be lost."""
    views = mu.Transform(lambda x, y: (x, {"a": y, "b": 10 * y}), labels=True, batched=True)
    assert set(views(torch.rand(4, 3), torch.arange(4))[1]) == {"a", "b"}
    with pytest.raises(TypeError, match="changes the structure of \\(x, y\\), for example from a tensor to a dict"):
        mu.Compose(mu.Gaussian(0.1), views)(torch.rand(4, 3), torch.arange(4))


@pytest.mark.parametrize("m", [1, 3])
def test_a_network_before_maxup_gets_its_gradient_or_an_error(m):
    torch.manual_seed(0)
    encoder, head, x, y = torch.nn.Linear(5, 5), torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
    mu.MaxUp(mu.Gaussian(0.1), m)(head, encoder(x), y).backward()
    assert encoder.weight.grad.norm() > 0
    both = mu.MaxUp(mu.Compose(mu.Gaussian(0.1), mu.Gaussian(0.1)), m)
    if m > 1:
        with pytest.raises(ValueError, match="x requires a gradient, but the copies of Compose have none"):
            both(head, encoder(x), y)
    else:
        both(head, encoder(x), y).backward()
    both(head, encoder(x).detach(), y).backward()

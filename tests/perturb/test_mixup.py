import pytest
import torch

from maxup import MixUp
from tests.oracles import torchvision_v2
from tests.tiny import far_from_beta, generator


def test_agrees_with_torchvision_on_hand_written_draws():
    theirs = torchvision_v2().MixUp(num_classes=4)
    x, y = torch.rand(4, 3, 6, 6), torch.arange(4)
    for weight in (0.0, 0.3, 1.0):
        draw = {"partner": torch.arange(4).roll(1), "weight": torch.full((4,), weight)}
        ours_x, ours_y = MixUp(num_classes=4).apply((x, y), draw)
        torch.testing.assert_close(ours_x, theirs.transform(x, {"lam": weight, "labels": y, "batch_size": 4}))
        torch.testing.assert_close(ours_y, theirs._mixup_label(y, lam=weight))


@pytest.mark.parametrize("alpha", [1e-300, 0.01, 0.05, 0.2, 1.0, 4.0])
def test_weights_are_beta(alpha):
    draw = MixUp(2, alpha=alpha).draw((torch.zeros(20_000, 1), None), generator())
    assert far_from_beta(draw["weight"], alpha, alpha) < 1.63  # the 1 % level of Kolmogorov-Smirnov
    assert (draw["partner"] != torch.arange(20_000)).all()


def test_every_floating_leaf_mixes_with_the_same_partner():
    x = {"a": torch.arange(4.0)[:, None], "b": torch.arange(4.0)[:, None, None], "n": torch.arange(4)}
    mixed, _ = MixUp(num_classes=2)(x, torch.tensor([0, 1, 0, 1]), generator=generator())
    assert torch.equal(mixed["a"].flatten(), mixed["b"].flatten())
    assert torch.equal(mixed["n"], x["n"])


def test_infinite_values_stay():
    """An attention mask that is added to scores holds them."""
    x = {"h": torch.rand(4, 2), "mask": torch.tensor([0.0, -torch.inf]).repeat(4, 1)}
    mixed, _ = MixUp(2)(x, torch.tensor([0, 1, 0, 1]), generator=generator())
    assert torch.equal(mixed["mask"], x["mask"])


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="alpha must be above 0"):
        MixUp(2, alpha=0)
    with pytest.raises(ValueError, match="use at least 2"):
        MixUp(num_classes=2)(torch.rand(1, 3), torch.zeros(1, dtype=torch.long))
    with pytest.raises(TypeError, match="blends floating-point tensors"):
        MixUp(num_classes=2)(torch.zeros(4, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))

import pytest
import torch

from maxup import AutoAugment, ColorJitter, Lighting, RandAugment, TrivialAugment
from maxup.perturb.pixels import Pixels
from tests.tiny import generator

MEAN, STD = (0.5, 0.4, 0.3), (0.3, 0.2, 0.4)
ALL = [RandAugment, TrivialAugment, AutoAugment, ColorJitter, Lighting]


@pytest.mark.parametrize("kind", ALL)
def test_normalized_images_give_the_same_result(kind):
    x = torch.randint(256, (32, 3, 16, 16), generator=generator()) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    draw = kind().draw((x, None), generator())
    plain, _ = kind().apply((x, None), draw)
    normalized, _ = kind(mean=MEAN, std=STD).apply(((x - mean) / std, None), draw)
    torch.testing.assert_close(normalized, (plain - mean) / std, atol=1e-4, rtol=1e-4)
    assert not torch.equal(plain, x)


@pytest.mark.parametrize("kind", [RandAugment, TrivialAugment, AutoAugment, ColorJitter])
def test_normalized_images_without_mean_and_std_are_refused(kind):
    x, y = torch.randn(8, 3, 16, 16, generator=generator()), torch.zeros(8)
    message = rf"^{kind.__name__} expects pixels in \[0, 1\], but with mean \(0.0,\) and std \(1.0,\) they range from -"
    with pytest.raises(ValueError, match=message):
        kind()(x, y)
    with pytest.raises(ValueError, match=message):
        kind()(2 * torch.rand(8, 3, 16, 16) - 1, y)
    kind()(x.clamp(0, 1) + 0.2, y)  # slightly outside [0, 1] is clipped
    kind()(x[:0], y[:0])


@pytest.mark.parametrize("kind", ALL)
def test_uint8_images_stay_uint8_and_give_the_same_result(kind):
    x = torch.randint(256, (32, 3, 16, 16), generator=generator(), dtype=torch.uint8)
    draw = kind().draw((x, None), generator())
    new, _ = kind().apply((x, None), draw)
    floating, _ = kind().apply((x / 255, None), draw)
    assert new.dtype == torch.uint8
    assert torch.equal(new, (255 * floating).round().clamp(0, 255).to(torch.uint8))


@pytest.mark.parametrize("kind", ALL)
def test_memory_format_is_kept(kind):
    x = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    assert kind()(x)[0].is_contiguous(memory_format=torch.channels_last)


def test_invalid_input_is_refused():
    x = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"RandAugment\(std=0\): every standard deviation must be above 0"):
        RandAugment(std=0)
    with pytest.raises(ValueError, match="do not match 3 channels; pass one number, or one per channel"):
        ColorJitter(mean=(0.5, 0.5))(x)
    with pytest.raises(ValueError, match="expects gray or RGB images, but x has 4 channels"):
        TrivialAugment()(torch.rand(2, 4, 8, 8))
    with pytest.raises(TypeError, match=r"expects floating-point or uint8 images, not torch\.int64"):
        AutoAugment()(torch.zeros(2, 3, 8, 8, dtype=torch.long))
    with pytest.raises(NotImplementedError, match="must define change"):
        Pixels().apply((x, None), None)

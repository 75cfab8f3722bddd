import pytest
import torch

from maxup import AutoAugment, ColorJitter, Lighting, RandAugment, TrivialAugment
from maxup.perturb.pixels import Pixels
from tests.tiny import generator

MEAN, STD = (0.5, 0.4, 0.3), (0.3, 0.2, 0.4)
ALL = [RandAugment, TrivialAugment, AutoAugment, ColorJitter, Lighting]


@pytest.mark.parametrize("kind", ALL)
def test_normalized_images_get_what_plain_ones_get(kind):
    x = torch.randint(256, (32, 3, 16, 16), generator=generator()) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    draw = kind().draw((x, None), generator())
    plain, _ = kind().apply((x, None), draw)
    normalized, _ = kind(mean=MEAN, std=STD).apply(((x - mean) / std, None), draw)
    torch.testing.assert_close(normalized, (plain - mean) / std, atol=1e-4, rtol=1e-4)
    assert not torch.equal(plain, x)


@pytest.mark.parametrize("kind", [RandAugment, TrivialAugment, AutoAugment, ColorJitter])
def test_normalized_images_are_not_taken_for_plain_ones(kind):
    x, y = torch.randn(8, 3, 16, 16, generator=generator()), torch.zeros(8)
    said = rf"^{kind.__name__} is for pixels in \[0, 1\], but with mean \(0.0,\) and std \(1.0,\) they run from -"
    with pytest.raises(ValueError, match=said):
        kind()(x, y)
    with pytest.raises(ValueError, match=said):
        kind()(2 * torch.rand(8, 3, 16, 16) - 1, y)
    kind()(x.clamp(0, 1) + 0.2, y)  # a little beyond is cut off
    kind()(x[:0], y[:0])


@pytest.mark.parametrize("kind", ALL)
def test_bytes_stay_bytes_and_get_the_same(kind):
    x = torch.randint(256, (32, 3, 16, 16), generator=generator(), dtype=torch.uint8)
    draw = kind().draw((x, None), generator())
    new, _ = kind().apply((x, None), draw)
    floating, _ = kind().apply((x / 255, None), draw)
    assert new.dtype == torch.uint8
    assert torch.equal(new, (255 * floating).round().clamp(0, 255).to(torch.uint8))


@pytest.mark.parametrize("kind", ALL)
def test_memory_format_stays(kind):
    x = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    assert kind()(x)[0].is_contiguous(memory_format=torch.channels_last)


def test_bad_input_is_refused():
    x = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"RandAugment\(std=0\): every deviation must be above 0"):
        RandAugment(std=0)
    with pytest.raises(ValueError, match="do not fit 3 channels; give one number, or one a channel"):
        ColorJitter(mean=(0.5, 0.5))(x)
    with pytest.raises(ValueError, match="wants gray or RGB images, but x holds 4 channels"):
        TrivialAugment()(torch.rand(2, 4, 8, 8))
    with pytest.raises(TypeError, match=r"wants floating images or bytes, not torch\.int64"):
        AutoAugment()(torch.zeros(2, 3, 8, 8, dtype=torch.long))
    with pytest.raises(NotImplementedError, match="must define change"):
        Pixels().apply((x, None), None)

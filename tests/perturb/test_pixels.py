import pytest
import torch

from maxup import AutoAugment, ColorJitter, Lighting, RandAugment, TrivialAugment
from maxup.perturb.pixels import Pixels
from tests.tiny import generator

MEAN, STD = (0.5, 0.4, 0.3), (0.3, 0.2, 0.4)
ALL = [RandAugment, TrivialAugment, AutoAugment, ColorJitter, Lighting]


@pytest.mark.parametrize("kind", ALL)
def test_normalised_images_get_what_plain_ones_get(kind):
    x = torch.randint(256, (32, 3, 16, 16), generator=generator()) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    draw = kind().draw((x, None), generator())
    plain, _ = kind().apply((x, None), draw)
    normalised, _ = kind(mean=MEAN, std=STD).apply(((x - mean) / std, None), draw)
    torch.testing.assert_close(normalised, (plain - mean) / std, atol=1e-4, rtol=1e-4)
    assert not torch.equal(plain, x)


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
    with pytest.raises(ValueError, match="wants grey or RGB images, but x holds 4 channels"):
        TrivialAugment()(torch.rand(2, 4, 8, 8))
    with pytest.raises(TypeError, match=r"wants floating images or bytes, not torch\.int64"):
        AutoAugment()(torch.zeros(2, 3, 8, 8, dtype=torch.long))
    with pytest.raises(NotImplementedError, match="must define change"):
        Pixels().apply((x, None), None)

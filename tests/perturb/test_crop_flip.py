import pytest
import torch
from scipy import stats

from maxup import CropFlip
from tests.oracles import torchvision_v2
from tests.tiny import generator


def test_agrees_with_torchvision_on_every_offset():
    f = torchvision_v2().functional
    offset = torch.cartesian_prod(torch.arange(5), torch.arange(5)).repeat(2, 1)
    flip = torch.arange(50) >= 25
    x = torch.rand(50, 3, 6, 8)
    ours, _ = CropFlip(2, fill=0.5).apply((x, None), {"offset": offset, "flip": flip})
    for image, got, (row, column), mirror in zip(x, ours, offset.tolist(), flip.tolist(), strict=True):
        crop = f.crop(f.pad(image, [2, 2, 2, 2], fill=0.5), row, column, 6, 8)
        assert torch.equal(got, f.horizontal_flip(crop) if mirror else crop)


def test_draws_are_uniform():
    draw = CropFlip(2).draw((torch.zeros(5000, 1, 4, 4), None), generator())
    counts = torch.bincount(draw["offset"][:, 0] * 5 + draw["offset"][:, 1], minlength=25)
    assert len(counts) == 25
    assert stats.chisquare(counts.numpy()).pvalue > 0.01
    assert stats.binomtest(int(draw["flip"].sum()), 5000).pvalue > 0.01


def test_flip_can_be_off_and_dtype_and_memory_format_are_kept():
    assert not CropFlip(2, flip=False).draw((torch.zeros(100, 1, 4, 4), None), generator())["flip"].any()
    x = torch.randint(255, (4, 3, 8, 8), dtype=torch.uint8).to(memory_format=torch.channels_last)
    out, _ = CropFlip(1)(x)
    assert out.dtype == torch.uint8
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match=r"CropFlip\(flip='a'\): flip must be True or False"):
        CropFlip(flip="a")
    with pytest.raises(ValueError, match="padding=-1"):
        CropFlip(-1)

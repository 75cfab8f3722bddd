import pytest
import torch
from scipy import stats

from maxup import Cutout
from tests.oracles import torchvision_v2
from tests.tiny import generator


@pytest.mark.parametrize("length", [1, 2, 3, 5, 20])
def test_agrees_with_torchvision_erase(length):
    erase = torchvision_v2().functional.erase
    x = torch.rand(64, 3, 8, 10)
    center = torch.cartesian_prod(torch.arange(0, 8), torch.arange(0, 10, 1))[:64]
    cut, _ = Cutout(length, fill=0.5).apply((x, None), {"center": center})
    for image, ours, (row, column) in zip(x, cut, center.tolist(), strict=True):
        top, left = row - length // 2, column - length // 2
        box = max(top, 0), max(left, 0), min(top + length, 8), min(left + length, 10)
        erased = erase(image, *box[:2], box[2] - box[0], box[3] - box[1], v=torch.tensor(0.5))
        assert torch.equal(ours, erased)


def test_centers_are_uniform_over_pixels():
    draw = Cutout(3).draw((torch.zeros(8000, 1, 4, 5), None), generator())
    counts = torch.bincount(draw["center"][:, 0] * 5 + draw["center"][:, 1], minlength=20)
    assert len(counts) == 20
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_several_images_are_cut_alike_and_other_leaves_are_left():
    x = {"rgb": torch.ones(2, 3, 8, 8), "depth": torch.ones(2, 1, 8, 8), "id": torch.arange(2)}
    cut, _ = Cutout(4)(x, generator=generator())
    assert torch.equal(cut["rgb"][:, :1], cut["depth"])
    assert cut["depth"].sum() < 128
    assert torch.equal(cut["id"], x["id"])
    only, _ = Cutout(4, key="depth")(x, generator=generator())
    assert only["rgb"].sum() == x["rgb"].sum()
    assert only["depth"].sum() < 128


def test_channels_last_stays():
    x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert Cutout(2)(x)[0].is_contiguous(memory_format=torch.channels_last)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="length=0"):
        Cutout(0)
    with pytest.raises(ValueError, match=r"\(B, C, H, W\), but x holds shape \(2, 5\)"):
        Cutout(2)(torch.zeros(2, 5))
    with pytest.raises(KeyError, match="'image' is not in x, which is a dict with the keys"):
        Cutout(2, key="image")({"pixels": torch.zeros(2, 3, 4, 4)})
    with pytest.raises(ValueError, match="no floating-point tensor"):
        Cutout(2)({"pixels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)})

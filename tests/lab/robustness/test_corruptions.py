"""Every corruption against an independent truth, and what all of them share."""

import io

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image

from maxup.lab.robustness.corruptions import CORRUPTIONS, blur, contrast, jpeg, noise, occlusion


def images(count=6, channels=3, height=32, width=32):
    """Smooth images, as photos are, with pixels of bytes in [0, 1]."""
    x = torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))
    smooth = scipy.ndimage.gaussian_filter(x.numpy(), (0, 0, 2, 2))
    low, high = smooth.min(), smooth.max()
    return (torch.from_numpy((smooth - low) / (high - low)) * 255).round() / 255, torch.arange(count)


def test_noise_has_the_standard_deviation_and_no_bias():
    x, indices = torch.full((50, 3, 32, 32), 0.5), torch.arange(50)
    for std in (0.04, 0.1):
        found = noise(x, std, indices) - x
        assert float(found.std()) == pytest.approx(std, rel=0.01)
        assert abs(float(found.mean())) < 4 * std / found.numel() ** 0.5
    flat = noise(x, 0.1, indices).flatten(1)
    assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 0.1  # images differ


@pytest.mark.parametrize(("shape", "scale"), [((32, 32), 1), ((40, 96), 1.25), ((8, 8), 1)])
def test_blur_is_that_of_scipy(shape, scale):
    x, indices = images(2, 3, *shape)
    for sigma in CORRUPTIONS["blur"].levels:
        sigmas = (0, 0, scale * sigma, scale * sigma)
        expected = scipy.ndimage.gaussian_filter(x.double().numpy(), sigmas, mode="nearest", truncate=4)
        np.testing.assert_allclose(blur(x, sigma, indices).numpy(), expected, atol=2e-6)


def test_contrast_moves_pixels_toward_the_mean_of_the_channel():
    x, indices = images()
    found = contrast(x, 0.25, indices)
    for image, moved in zip(x, found, strict=True):
        for before, after in zip(image, moved, strict=True):
            assert float(after.std()) == pytest.approx(0.25 * float(before.std()), rel=1e-4)
            torch.testing.assert_close(after, before.mean() + 0.25 * (before - before.mean()))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_jpeg_is_that_of_pillow(channels, mode):
    x, indices = images(3, channels)
    found = jpeg(x, 25, indices)
    for image, after in zip(x, found, strict=True):
        data, buffer = (image * 255).byte().permute(1, 2, 0).numpy(), io.BytesIO()
        Image.fromarray(data if channels == 3 else data[..., 0], mode).save(buffer, format="jpeg", quality=25)
        expected = np.array(Image.open(buffer)).reshape(32, 32, channels) / 255
        np.testing.assert_allclose(after.permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_jpeg_compresses_other_channels_one_by_one():
    x, indices = images(2, 5)
    found = jpeg(x, 40, indices)
    for c in range(5):
        torch.testing.assert_close(found[:, c : c + 1], jpeg(x[:, c : c + 1], 40, indices))


def test_occlusion_covers_one_rectangle_of_the_size_and_nothing_else():
    x, indices = images(40, 3, 20, 30)
    x = 0.4 * x  # no pixel is gray
    found, corners = occlusion(x, 0.3, indices), set()
    for before, after in zip(x, found, strict=True):
        covered = (after == 0.5).all(0)
        assert torch.equal(after[:, ~covered], before[:, ~covered])
        rows, columns = covered.any(1).nonzero()[:, 0], covered.any(0).nonzero()[:, 0]
        top, left = int(rows[0]), int(columns[0])
        assert covered[top : top + 6, left : left + 9].all()
        assert int(covered.sum()) == 6 * 9
        corners.add((top, left))
    assert len(corners) > 30
    assert {0, 14} <= {top for top, _ in corners}  # every place is possible, up to both edges


@pytest.mark.parametrize(
    ("corrupt", "level"), [(noise, 0.0), (blur, 0.1), (contrast, 1.0), (occlusion, 0.0)], ids=lambda one: str(one)[:14]
)
def test_no_strength_changes_nothing(corrupt, level):
    x, indices = images()
    assert torch.equal(corrupt(x, level, indices), x)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_five_levels_are_further_and_further_away(name):
    x, indices = images(16)
    kind = CORRUPTIONS[name]
    found = [kind.apply(x, level, indices) for level in kind.levels]
    distance = [float((one - x).norm()) for one in found]
    assert len(distance) == 5
    assert distance == sorted(distance)
    assert len(set(distance)) == 5
    for one in found:
        assert one.shape == x.shape
        assert 0 <= float(one.min()) <= float(one.max()) <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_gets_the_same_in_any_batch(name):
    x, indices = images()
    kind = CORRUPTIONS[name]
    for level in kind.levels[::4]:
        whole = kind.apply(x, level, indices)
        again = torch.cat([kind.apply(x[i : i + 1], level, indices[i : i + 1]) for i in range(len(x))])
        assert torch.equal(whole, kind.apply(x, level, indices))
        torch.testing.assert_close(again, whole, rtol=0, atol=1e-6)
        order = torch.tensor([3, 0, 5])
        torch.testing.assert_close(kind.apply(x[order], level, indices[order]), whole[order], rtol=0, atol=1e-6)

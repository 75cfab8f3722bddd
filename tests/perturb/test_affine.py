import kornia.geometry.transform as kornia
import pytest
import torch
from scipy import stats

from maxup import Affine
from tests.tiny import generator


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 14), (16, 7)])
def test_agrees_with_kornia_rotate_then_translate(height, width):
    g = generator()
    x = torch.rand(12, 3, height, width, generator=g, dtype=torch.float64)
    angle = torch.linspace(-60, 60, 12, dtype=torch.float64)
    shift = 4 * torch.rand(12, 2, generator=g, dtype=torch.float64) - 2
    ours, _ = Affine().apply((x, None), {"angle": angle, "shift": shift})
    # One warp, not two: rotate about the center and shift by (right, down) in a single matrix.
    center = torch.tensor([[(width - 1) / 2, (height - 1) / 2]], dtype=torch.float64).expand(12, 2)
    scale = torch.ones(12, 2, dtype=torch.float64)
    matrix = kornia.get_rotation_matrix2d(center, angle, scale)
    matrix[:, :, 2] += shift.flip(1)
    theirs = kornia.warp_affine(x, matrix, (height, width), align_corners=True)
    inside = (slice(None), slice(None), slice(2, -2), slice(2, -2))  # the border's interpolation differs
    torch.testing.assert_close(ours[inside], theirs[inside], atol=1e-6, rtol=0)


def test_right_angles_and_integer_shifts_are_exact():
    x = torch.rand(1, 1, 6, 6)
    turned, _ = Affine().apply((x, None), {"angle": torch.tensor([90.0]), "shift": torch.zeros(1, 2)})
    torch.testing.assert_close(turned, x.rot90(1, (2, 3)), atol=1e-5, rtol=0)
    moved, _ = Affine().apply((x, None), {"angle": torch.zeros(1), "shift": torch.tensor([[2.0, -1.0]])})
    torch.testing.assert_close(moved[..., 2:, :-1], x[..., :-2, 1:], atol=1e-5, rtol=0)
    assert moved[..., :2, :].abs().max() < 1e-5


def test_draws_are_uniform_and_the_memory_format_is_kept():
    x = torch.rand(2000, 1, 10, 20)
    draw = Affine(15, translate=0.1).draw((x, None), generator())
    for values, limit in ((draw["angle"], 15), (draw["shift"][:, 0], 1), (draw["shift"][:, 1], 2)):
        assert stats.kstest(values.numpy(), stats.uniform(-limit, 2 * limit).cdf).pvalue > 0.01
    x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert Affine()(x)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_large_images(dtype):
    x = torch.rand(2, 1, 224, 224, generator=generator())
    draw = Affine().draw((x, None), generator())
    full, half = (Affine().apply((v, None), draw)[0] for v in (x, x.to(dtype)))
    assert half.dtype == dtype
    assert (half.float() - full).abs().max() < 0.02


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="between 0 and 180"):
        Affine(-5)
    with pytest.raises(ValueError, match="fraction of the image"):
        Affine(translate=4)
    with pytest.raises(TypeError, match="images must be floating"):
        Affine()(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))

import torch
from torch.nn import functional as F

from maxup import Affine
from maxup.perturb.geometry import warp
from tests.tiny import generator


def test_agrees_with_affine_grid():
    g = generator()
    x = torch.rand(5, 2, 9, 14, generator=g, dtype=torch.float64)
    inverse = torch.randn(5, 6, generator=g, dtype=torch.float64)
    a, b, c, d, e, f = inverse.unbind(1)
    ours = warp(x, [a, b, c, d, e, f], mode="bilinear")
    theta = torch.stack([a, b * 9 / 14, c * 2 / 14, d * 14 / 9, e, f * 2 / 9], dim=1).view(5, 2, 3)
    theirs = F.grid_sample(x, F.affine_grid(theta, [5, 2, 9, 14], align_corners=False), align_corners=False)
    torch.testing.assert_close(ours, theirs)


def test_autocast_does_not_move_pixels():
    """In a bfloat16 grid, neighboring pixels of a large image would coincide."""
    x = torch.rand(2, 1, 224, 224, generator=generator())
    draw = Affine().draw((x, None), generator())
    plain, _ = Affine().apply((x, None), draw)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = Affine().apply((x, None), draw)
    assert torch.equal(plain, cast)

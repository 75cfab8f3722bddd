"""Integer masks in y move with the images; other spatial targets are refused, and the rest stays unchanged."""

import pytest
import torch
from scipy import ndimage
from torch import nn
from torch.nn import functional as F

import maxup as mu
from maxup.perturb.operations import NUMBER
from tests.oracles import torchvision_v2
from tests.tiny import generator, gradients

B, H, W, CLASSES = 6, 9, 12, 5


def coordinates(b=B, h=H, w=W):
    """Images (b, 1, h, w) and masks (b, h, w) with the same value, nearly unique, at each pixel."""
    mask = torch.arange(b * h * w).view(b, h, w) % 251 + 1  # 1 ... 251: uint8 levels
    return mask[:, None].double() / 255, mask


def levels(x):
    return (255 * x[:, 0]).round().long()


MOVING = {
    "crop-flip": lambda **more: mu.CropFlip(3, **more),
    "affine": lambda **more: mu.Affine(30, translate=0.2, **more),
    "rand-augment": lambda **more: mu.RandAugment(**more),
    "trivial-augment": lambda **more: mu.TrivialAugment(**more),
    "auto-augment": lambda **more: mu.AutoAugment("cifar10", **more),
    "cutout": lambda **more: mu.Cutout(4, **more),
}
PASTING = {"cutmix": lambda **more: mu.CutMix(CLASSES, **more)}
STAYING = {
    "gaussian": lambda: mu.Gaussian(0.1),
    "color-jitter": lambda: mu.ColorJitter(),
    "lighting": lambda: mu.Lighting(),
}


@pytest.mark.parametrize("padding", [0, 3])
def test_crop_flip_moves_images_and_masks_together(padding):
    x, mask = coordinates()
    new_x, new_mask = mu.CropFlip(padding, fill=0.0, mask_fill=0)(x, mask, generator=generator())
    assert torch.equal(levels(new_x), new_mask)
    assert not torch.equal(new_mask, mask)


def test_cutout_fills_the_mask_too():
    x, mask = coordinates()
    new_x, new_mask = mu.Cutout(4, mask_fill=0)(x, mask, generator=generator())
    assert torch.equal(levels(new_x), new_mask)
    assert (mu.Cutout(4)(x, mask, generator=generator())[1] == -100).sum() == (new_mask == 0).sum() > B
    assert mu.Cutout(4, mask_fill=None)(x, mask)[1] is mask


@pytest.mark.parametrize("same", ["mask", "dict"])
def test_cutmix_pastes_the_mask_of_the_partner(same):
    x, mask = coordinates()
    y = mask if same == "mask" else {"mask": mask, "class": torch.arange(B) % CLASSES}
    cutmix = mu.CutMix(CLASSES)
    draw = cutmix.draw((x, y), generator())
    new_x, new_y = cutmix.apply((x, y), draw)
    new_mask = new_y if same == "mask" else new_y["mask"]
    assert torch.equal(levels(new_x), new_mask)
    assert not torch.equal(new_mask, mask)
    if same == "dict":
        assert torch.equal(new_y["class"], cutmix.apply((x, y["class"]), draw)[1])
    else:
        assert torch.equal(mu.CutMix().apply((x, mask), draw)[1], new_mask)  # masks need no num_classes


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"])
def test_policies_move_images_and_masks_together(name):
    """The black fill is label 0 here. One operation, then two."""
    x, mask = coordinates(b=16)
    number = torch.full((16, 1), NUMBER[name])
    strength = torch.linspace(-1, 1, 16)[:, None] * {"S": 0.9, "T": 7.0, "R": 135.0}[name[0]]
    policy = mu.RandAugment(mask_fill=0)
    again = number.flip(0), strength.flip(0) / 3
    for draw in (
        {"operation": number, "magnitude": strength},
        {"operation": torch.cat([number, again[0]], 1), "magnitude": torch.cat([strength, again[1]], 1)},
    ):
        new_x, new_mask = policy.apply((x, mask), draw)
        assert torch.equal(levels(new_x), new_mask)
        assert (new_mask == mask).flatten(1).all(1).sum() < 8


@pytest.mark.parametrize("policy", ["rand-augment", "trivial-augment", "auto-augment"])
def test_policies_move_masks_only_with_geometric_operations(policy):
    x, mask = coordinates(b=64)
    perturb = MOVING[policy]()
    draw = perturb.draw((x, mask), generator())
    _, new_mask = perturb.apply((x, mask), draw)
    moves = (draw["operation"] >= NUMBER["ShearX"]) & (draw["operation"] <= NUMBER["Rotate"]) & (draw["magnitude"] != 0)
    changed = (new_mask != mask).flatten(1).any(1)
    assert torch.equal(changed & ~moves.any(1), torch.zeros(64, dtype=torch.bool))
    assert changed.sum() > 8
    assert (new_mask == -100).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_affine_agrees_with_scipy(dtype):
    x, mask = torch.rand(16, 3, H, W, dtype=dtype), torch.randint(1000, (16, H, W))
    affine = mu.Affine(60, translate=0.3)
    draw = affine.draw((x, mask), generator())
    _, ours = affine.apply((x, mask), draw)
    center = torch.tensor([(H - 1) / 2, (W - 1) / 2], dtype=torch.float64)
    for i in range(16):
        angle = torch.deg2rad(draw["angle"][i].double())
        cos, sin = torch.cos(angle), torch.sin(angle)
        back = torch.stack([torch.stack([cos, sin]), torch.stack([-sin, cos])])  # rows down, columns right
        offset = center - back @ (center + draw["shift"][i].double())
        theirs = ndimage.affine_transform(
            mask[i].numpy(), back.numpy(), offset.numpy(), order=0, mode="grid-constant", cval=-100
        )
        different = (ours[i] != torch.from_numpy(theirs)).sum()
        assert different <= (0 if dtype == torch.float64 else 1), (
            different
        )  # float32 rounding may cross the border of a pixel
    assert (ours == -100).any()


def test_affine_moves_images_and_masks_together():
    """Two stripes: away from their border, bilinear interpolation is exact, and the masks must agree."""
    mask = (torch.arange(32) >= 16).long().expand(8, 32, 32).contiguous()
    x = (mask[:, None] + 1).double()
    new_x, new_mask = mu.Affine(45, translate=0.2, mask_fill=-1)(x, mask, generator=generator())
    sure = new_x[:, 0] == new_x[:, 0].round()
    assert sure.float().mean() > 0.7
    assert torch.equal(new_x[:, 0][sure].long() - 1, new_mask[sure])


def test_crop_flip_agrees_with_torchvision():
    v2 = torchvision_v2()
    from torchvision import tv_tensors

    f = v2.functional
    mask = torch.randint(1000, (50, 6, 8))
    offset = torch.cartesian_prod(torch.arange(5), torch.arange(5)).repeat(2, 1)
    flip = torch.arange(50) >= 25
    _, ours = mu.CropFlip(2).apply((torch.rand(50, 3, 6, 8), mask), {"offset": offset, "flip": flip})
    for one, got, (row, column), mirror in zip(mask, ours, offset.tolist(), flip.tolist(), strict=True):
        crop = f.crop(f.pad(tv_tensors.Mask(one), [2, 2, 2, 2], fill=-100), row, column, 6, 8)
        assert torch.equal(got, f.horizontal_flip(crop) if mirror else crop)


@pytest.mark.parametrize("name", [*MOVING, *PASTING])
def test_masks_of_every_dtype_and_layout(name):
    """Integer dtypes, layers, containers and channels_last all give the result of the plain mask."""
    x, mask = coordinates()
    mask = mask % 2
    perturb = (MOVING | PASTING)[name](**({"mask_fill": 1} if name in MOVING else {}))
    draw = perturb.draw((x, mask), generator())
    expected = perturb.apply((x, mask), draw)[1]
    assert expected.shape == mask.shape
    old = torch.__version__.startswith("2.6.")  # cannot index uint16
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, *([] if old else [torch.uint16])):
        got = perturb.apply((x, mask.to(dtype)), draw)[1]
        assert got.dtype == dtype
        assert torch.equal(got.long(), expected)
    layers = torch.stack([mask, 1 - mask, mask], dim=1)  # (B, 3, H, W)
    y = {"semantic": mask, "layers": [layers.to(memory_format=torch.channels_last), mask[:, None]]}
    got = perturb.apply((x.to(memory_format=torch.channels_last), y), draw)[1]
    assert torch.equal(got["semantic"], expected)
    assert torch.equal(got["layers"][1], expected[:, None])
    assert torch.equal(got["layers"][0][:, 0], expected)
    assert torch.equal(got["layers"][0][:, 2], expected)
    assert got["layers"][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", MOVING)
def test_pixels_from_outside_get_mask_fill(name):
    x, mask = coordinates(b=64)
    assert MOVING[name]().mask_fill == -100
    _, new = MOVING[name]()(x, mask, generator=generator())
    assert set(new.unique().tolist()) - set(mask.unique().tolist()) == {-100}
    _, other = MOVING[name](mask_fill=255)(x, mask, generator=generator())
    assert torch.equal(other, torch.where(new == -100, 255, new))


def not_spatial():
    """Targets that are not spatial, some with the size of the images by coincidence."""
    return {
        "classes": torch.arange(B),
        "probabilities": torch.rand(B, CLASSES).softmax(1),
        "many labels": torch.rand(B, W).round(),
        "numbers": torch.randn(B, H),
        "tokens": torch.randint(9, (B, W)),
        "one": torch.randn(B, 1),
        "flags": torch.rand(B, H) > 0.5,
        "none": None,
        "scale": torch.tensor(3.0),
        "names": ["a", "b"],
    }


@pytest.mark.parametrize("name", [*MOVING, *STAYING])
def test_other_targets_stay_unchanged(name):
    x, y = torch.rand(B, 3, H, W), not_spatial()
    perturb = (MOVING | STAYING)[name]()
    _, new = perturb(x, y, generator=generator())
    assert new.keys() == y.keys()
    assert all(new[key] is y[key] for key in y if key != "names")
    for target in y.values():
        new = perturb(x, target, generator=generator())[1]
        assert new is target or new == ["a", "b"]


@pytest.mark.parametrize("name", STAYING)
def test_masks_stay_unchanged_if_pixels_do_not_move(name):
    x, mask = torch.rand(B, 3, H, W), torch.randint(5, (B, H, W))
    for y in (mask, mask.float(), torch.rand(B, 7, 4)):
        assert STAYING[name]()(x, y)[1] is y


FIXED = {
    "float map": torch.rand(B, H, W),
    "heat maps": torch.rand(B, 17, H, W),
    "small heat maps": torch.rand(B, 17, H // 3, W // 3),
    "boxes": torch.rand(B, 10, 4),
    "integer boxes": torch.randint(9, (B, 10, 4)),
    "keypoints": torch.rand(B, 17, 2),
    "small mask": torch.randint(5, (B, H // 3, W // 3)),
    "transposed mask": torch.randint(5, (B, W, H)),
    "complex map": torch.rand(B, H, W).to(torch.complex64),
}


@pytest.mark.parametrize("target", FIXED)
@pytest.mark.parametrize("name", [*MOVING, *PASTING])
def test_other_spatial_targets_are_refused(name, target):
    y = FIXED[target]
    perturb = (MOVING | PASTING)[name]()
    message = (
        rf"^{type(perturb).__name__} changes images and integer masks of size \(9, 12\), but y holds {y.dtype} "
        rf"of shape \({B}, .*Transform\(\.\.\., labels=True\), or flatten [^\n]*$"
    )
    for nested in (y, {"classes": torch.arange(B), "maps": (y,)}):
        with pytest.raises(ValueError, match=message):
            perturb(torch.rand(B, 3, H, W), nested)


@pytest.mark.parametrize("name", [*MOVING, *PASTING])
def test_tv_tensors_are_recognized(name):
    """One box per image, (B, 4), looks like class targets, unless it is a tv_tensor."""
    torchvision_v2()
    from torchvision import tv_tensors

    perturb = (MOVING | PASTING)[name]()
    x, mask = coordinates()
    box = tv_tensors.BoundingBoxes(torch.rand(B, 4), format="XYXY", canvas_size=(H, W))
    with pytest.raises(ValueError, match=r"Transform\(\.\.\., labels=True\)"):
        perturb(x, box)
    draw = perturb.draw((x, mask), generator())
    assert torch.equal(perturb.apply((x, tv_tensors.Mask(mask)), draw)[1], perturb.apply((x, mask), draw)[1])


def test_cutout_can_leave_targets_unchanged():
    y = {"depth": FIXED["float map"], "boxes": FIXED["boxes"]}
    new = mu.Cutout(4, mask_fill=None)(torch.rand(B, 3, H, W), y)[1]
    assert new["depth"] is y["depth"]
    with pytest.raises(ValueError, match="; mask_fill=None leaves y unchanged"):
        mu.Cutout(4)(torch.rand(B, 3, H, W), y)


@pytest.mark.parametrize("name", [*MOVING, *PASTING])
def test_masks_belong_in_y(name):
    x = {"image": torch.rand(B, 3, H, W), "mask": torch.zeros(B, H, W, dtype=torch.long), "id": torch.arange(B)}
    y = torch.arange(B) % CLASSES
    with pytest.raises(ValueError, match=r"which would stay unchanged; move masks to y$"):
        (MOVING | PASTING)[name]()(x, y)
    new, _ = (MOVING | PASTING)[name](key="image")(x, y)
    assert new["mask"] is x["mask"]


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize(("dtype", "high"), [(torch.uint8, 255), (torch.bool, 1)])
def test_a_fill_that_the_dtype_cannot_hold_is_refused(name, dtype, high):
    x, mask = coordinates()
    message = (
        rf"\(mask_fill=-100\): y holds {dtype} masks, .*y\.long\(\), or set mask_fill= to a label from 0 to {high}$"
    )
    with pytest.raises(ValueError, match=message):
        MOVING[name]()(x, mask.to(dtype))
    assert mu.CropFlip(0)(x, mask.to(dtype))[1].dtype == dtype  # no pixel comes from outside


def test_fills_are_integers():
    for invalid in (1.5, "a", True, 10**30):
        with pytest.raises(ValueError, match="mask_fill must be a whole number that your loss ignores"):
            mu.CropFlip(mask_fill=invalid)
    with pytest.raises(ValueError, match="mask_fill must be a whole number"):
        mu.Affine(mask_fill=None)


@pytest.mark.parametrize("mixing", [mu.MixUp(CLASSES), mu.LabelNoise(0.1, num_classes=CLASSES)])
def test_mixing_refuses_masks(mixing):
    x, mask = coordinates()
    with pytest.raises(ValueError, match=r"y has shape \(6, 9, 12\); masks cannot be mixed, so use CutMix"):
        mixing(x, mask)
    net = nn.Sequential(nn.Conv2d(1, CLASSES, 1))
    manifold = mu.ManifoldMixup(["0"], CLASSES)
    with pytest.raises(ValueError, match="masks cannot be mixed"):
        mu.MaxUp(manifold, 2)(manifold.attach(net), x.float(), mask)


def test_masks_move_with_every_step_of_a_composition():
    x, mask = coordinates()
    compose = mu.Compose(mu.CropFlip(2, mask_fill=0), mu.CutMix(), mu.Cutout(3, mask_fill=0))
    new_x, new_mask = compose(x, mask, generator=generator())
    assert torch.equal(levels(new_x), new_mask)
    assert (new_mask == 0).sum() > 9 * B // 2


def segmenter():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, CLASSES, 3, padding=1)).double()


def pixel_loss(output, target):
    """The mean over the pixels that are not ignored, per example."""
    losses = F.cross_entropy(output, target, reduction="none").flatten(1).sum(1)
    return losses / (target != -100).flatten(1).sum(1).clamp_min(1)


COPIES = {name: make() for name, make in (MOVING | PASTING).items()}
COPIES["compose"] = mu.Compose(mu.CropFlip(2), mu.Cutout(3))


@pytest.mark.parametrize("name", COPIES)
def test_worst_copies_come_with_their_masks(name):
    """Compare selection and gradients with a forward pass of all copies and a maximum."""
    perturb, model = COPIES[name], segmenter()
    x, mask = coordinates()
    mask = mask % CLASSES
    g = generator(7)
    copies = [perturb.apply((x, mask), perturb.draw((x, mask), g)) for _ in range(4)]
    losses = torch.stack([pixel_loss(model(copy), target) for copy, target in copies])
    losses.max(0).values.mean().backward()
    expected, winner = gradients(model), losses.argmax(0)
    assert len(winner.unique()) > 1

    worst_x, worst_mask = mu.MaxUp(perturb, 4, loss_fn=pixel_loss, generator=generator(7)).select(model, x, mask)
    for i, k in enumerate(winner.tolist()):
        assert torch.equal(worst_x[i], copies[k][0][i])
        assert torch.equal(worst_mask[i], copies[k][1][i])
    model.zero_grad()
    pixel_loss(model(worst_x), worst_mask).mean().backward()
    torch.testing.assert_close(gradients(model), expected, atol=1e-10, rtol=0)
    for settings in ({}, {"chunk_size": 2}, {"strategy": "retain"}):
        model.zero_grad()
        mu.MaxUp(perturb, 4, loss_fn=pixel_loss, generator=generator(7), **settings)(model, x, mask).backward()
        torch.testing.assert_close(gradients(model), expected, atol=1e-10, rtol=0)

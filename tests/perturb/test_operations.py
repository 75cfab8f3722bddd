import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from maxup.perturb.operations import NUMBER, OPERATIONS, gray, operate
from tests.oracles import torchvision_v2
from tests.tiny import generator

N = 16
LARGEST = {"Shear": 0.99, "Translate": 14.0, "Rotate": 135.0}


def magnitudes(name, n=N):
    """Magnitudes of both signs, from none to the largest that any policy uses."""
    if name == "Posterize":
        return torch.arange(n) % 9.0
    if name == "Solarize":
        return torch.linspace(255, 0, n)
    return torch.linspace(-1, 1, n) * next((v for k, v in LARGEST.items() if name.startswith(k)), 0.99)


def photographs(channels, size, seed=0, n=N):
    """Smooth uint8 images, some of them with few levels or one."""
    coarse = 255 * torch.rand(n, channels, 5, 5, generator=generator(seed))
    x = F.interpolate(coarse, size=size, mode="bilinear").to(torch.uint8)
    x[1] //= 4  # dark
    x[2] = 77  # flat
    x[3, :, :2] = 255
    return x


def theirs(x, name, magnitude):
    torchvision_v2()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.autoaugment import _apply_op

    return torch.stack(
        [
            _apply_op(image, name, float(m), InterpolationMode.NEAREST, None)
            for image, m in zip(x, magnitude, strict=True)
        ]
    )


@pytest.mark.parametrize(("channels", "size"), [(3, (32, 32)), (3, (33, 48)), (1, (28, 20)), (3, (2, 9))])
@pytest.mark.parametrize("name", OPERATIONS)
def test_agrees_with_torchvision_on_uint8(name, channels, size):
    """Exact, except for rounding in the four operations that blend, and ties in rotations.

    Blending differs most when sharpening a smooth region, where torchvision computes 0.3 * 100 + 0.7 * 100 = 99. A
    rotation by 45 degrees reads some pixels from halfway between two, and may take the other one.
    """
    x, magnitude = photographs(channels, size), magnitudes(name)
    ours = operate(x.float(), torch.full((N,), NUMBER[name]), magnitude)
    expected = theirs(x, name, magnitude)
    difference = (ours - expected.float()).abs()
    tolerated = {"Brightness": 0.005, "Color": 0.02, "Contrast": 0.01, "Sharpness": 0.12, "Rotate": 0.002}.get(name, 0)
    assert name == "Rotate" or difference.max() <= (1 if tolerated else 0)
    assert (difference > 0).float().mean() <= tolerated
    too_small = size == (2, 9) and name in ("Sharpness", "Equalize")
    unchanged = name == "Identity" or (name, channels) == ("Color", 1) or too_small
    assert torch.equal(expected, x) == unchanged  # the operation does change the image


def test_agrees_with_torchvision_v2():
    v2 = torchvision_v2().functional
    x = photographs(3, (24, 24))
    calls = {
        "Rotate": (30.0, lambda i: v2.rotate(i, 30.0)),
        "Contrast": (0.5, lambda i: v2.adjust_contrast(i, 1.5)),
        "Posterize": (3.0, lambda i: v2.posterize(i, 3)),
        "AutoContrast": (0.0, v2.autocontrast),
        "Equalize": (0.0, v2.equalize),
    }
    for name, (magnitude, call) in calls.items():
        ours = operate(x.float(), torch.full((N,), NUMBER[name]), torch.full((N,), magnitude))
        assert (ours - call(x).float()).abs().max() <= 1, name


def test_every_example_has_its_own_operation():
    """A batch of all operations gives the same as one image at a time."""
    x = photographs(3, (16, 12), n=len(OPERATIONS)).float()
    operation = torch.arange(len(OPERATIONS))
    magnitude = torch.tensor([magnitudes(name)[11] for name in OPERATIONS])
    together = operate(x, operation, magnitude)
    for i in range(len(x)):
        alone = operate(x[i : i + 1], operation[i : i + 1], magnitude[i : i + 1])
        assert torch.equal(together[i], alone[0]), OPERATIONS[i]


@settings(max_examples=60)
@given(st.sampled_from(OPERATIONS), st.integers(0, 15), st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3]))
def test_levels_stay_levels(name, number, height, width, channels):
    x = torch.randint(256, (2, channels, height, width), generator=generator(number)).float()
    before = x.clone()
    new = operate(x, torch.full((2,), NUMBER[name]), magnitudes(name)[number].expand(2))
    assert new.shape == x.shape
    assert torch.equal(new, new.round())
    assert new.min() >= 0
    assert new.max() <= 255
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", ["ShearX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"])
def test_a_magnitude_of_zero_changes_nothing(name):
    x = photographs(3, (19, 23)).float()
    assert torch.equal(operate(x, torch.full((N,), NUMBER[name]), torch.zeros(N)), x)


def test_autocast_changes_nothing():
    x = photographs(3, (40, 40), n=len(OPERATIONS)).float()
    operation, magnitude = torch.arange(len(OPERATIONS)), torch.full((len(OPERATIONS),), 0.7)
    with torch.autocast("cpu", torch.bfloat16):
        cast = operate(x, operation, magnitude)
    assert torch.equal(cast, operate(x, operation, magnitude))


def test_gray_is_the_luminance():
    torch.testing.assert_close(gray(torch.eye(3).view(3, 3, 1, 1)).flatten(), torch.tensor([0.2989, 0.587, 0.114]))

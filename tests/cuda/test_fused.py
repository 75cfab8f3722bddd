"""Which passes are fused, and what runs where there is no kernel; tests/gpu/test_fused.py has what comes out."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from maxup import FeatureNoise
from maxup.cuda import fused
from maxup.lab.models import create_model


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(fused, "FOUND", True)


def arriving(channels=16, size=32, dtype=torch.bfloat16):
    """A tensor on a GPU, in name only."""
    with FakeTensorMode():
        return torch.empty(2, channels, size, size, dtype=dtype, device="cuda")


def layers(inputs=16, outputs=16, **own):
    settings = {"kernel_size": 3, "padding": 1, "bias": False} | own
    return [nn.Conv2d(inputs, outputs, **settings)], [nn.BatchNorm2d(outputs).eval()]


@torch.no_grad()
def test_passes_that_fit_and_those_that_do_not(device):
    assert fused.fits(arriving(), *layers())
    assert not fused.fits(arriving(8), *layers(8, 16))
    assert not fused.fits(arriving(), *layers(16, 24))
    assert not fused.fits(arriving(dtype=torch.float32), *layers())
    convs, norms = layers()
    assert not fused.fits(arriving(), convs, [norms[0].train()])
    with torch.enable_grad():
        assert not fused.fits(arriving(), *layers())


@torch.no_grad()
@pytest.mark.parametrize(
    "own",
    [{"bias": True}, {"dilation": 2}, {"groups": 4}, {"kernel_size": 1}, {"padding": 0}, {"padding_mode": "reflect"},
     {"stride": (1, 2)}, {"stride": 3}],
    ids=str,
)  # fmt: skip
def test_layers_that_the_kernel_does_not_compute(device, own):
    assert not fused.fits(arriving(), *layers(**own))


@torch.no_grad()
def test_layers_that_do_not_belong_together_or_are_none_of_these(device):
    assert not fused.fits(arriving(), *layers(64))  # which the layers refuse themselves
    convs, _ = layers()
    _, norms = layers()
    assert not fused.fits(arriving(), [nn.Identity()], norms)
    for norm in (nn.BatchNorm2d(16, affine=False).eval(), nn.GroupNorm(4, 16), nn.Identity()):
        assert not fused.fits(arriving(), convs, [norm])


@torch.no_grad()
def test_a_network_can_be_traced(device):
    model = create_model("resnet20", shape=(3, 8, 8), num_classes=10).eval()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))


def test_what_is_added_must_have_the_shape(device):
    (conv,), (norm,) = layers()
    with pytest.raises(ValueError, match=r"added has shape \(1, 16, 2, 2\); the convolution's is \(1, 16, 4, 4\)"):
        fused.conv_norm_relu(torch.randn(1, 16, 4, 4), conv, norm, torch.randn(1, 16, 2, 2))


@torch.no_grad()
def test_without_running_statistics_it_does_not_fit(device):
    convs, norms = layers()
    norms[0]._buffers.update(running_mean=None, running_var=None)
    assert not fused.fits(arriving(), convs, norms)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["conv1", "norm2"])
def test_a_perturbation_inside_a_block_is_not_passed_over(device, layer):
    model = create_model("resnet20", shape=(3, 32, 32), num_classes=10).eval()
    block = model.blocks[0]
    within = (block.conv1, block.conv2), (block.norm1, block.norm2)
    assert fused.fits(arriving(), *within)
    FeatureNoise(0.1, layer=f"blocks.0.{layer}").attach(model)
    assert not fused.fits(arriving(), *within)


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_without_a_gpu_it_is_the_layers(add, stride):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(16, 32, 3, stride, 1, bias=False), nn.BatchNorm2d(32).eval()
    norm.running_mean.normal_()
    x = torch.randn(3, 16, 9, 7).bfloat16()
    other = torch.randn(3, 32, -(-9 // stride), -(-7 // stride)).bfloat16() if add else None
    assert not fused.fits(x, [conv], [norm])
    found = fused.conv_norm_relu(x, conv, norm, other)
    wanted = F.relu(norm(conv(x.float())) + (0 if other is None else other.float()))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)
    torch.library.opcheck(
        torch.ops.maxup.conv_norm_relu.default,
        (x, conv.weight, norm.running_mean, norm.running_var, norm.weight, norm.bias, other, norm.eps, stride),
        test_utils=("test_schema", "test_faketensor"),
    )


def fail(definitions):
    raise RuntimeError("no compiler")


def test_a_kernel_that_cannot_be_compiled_is_told_once_and_not_tried_again(monkeypatch):
    monkeypatch.setattr(fused, "FOUND", True)
    monkeypatch.setattr(fused, "KERNELS", {})
    monkeypatch.setattr(fused, "_compile", fail)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    device = torch.device("cuda", 0)
    with pytest.warns(UserWarning, match="one by one, no kernel could be made for this GPU: no compiler"):
        assert fused._kernel(device, "") is None
    assert fused._kernel(device, "") is None  # and says nothing again
    assert not fused.FOUND
    assert fused.KERNELS == {(0, ""): None}

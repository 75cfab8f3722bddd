"""On a GPU: the fused kernel matches the separate layers up to rounding, alone and inside a network."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup.cuda import fused
from maxup.lab.certify.run import Settings, describe
from maxup.lab.certify.target import Target
from maxup.lab.data.arrays import from_arrays
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def layers(inputs, outputs, stride):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs).eval()
    for tensor in (norm.running_mean, norm.weight.data, norm.bias.data):
        tensor.normal_()
    norm.running_var.uniform_(0.5, 2)
    return conv.cuda(), norm.cuda()


@pytest.mark.parametrize(
    ("inputs", "outputs", "stride"), [(16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
)
@pytest.mark.parametrize("images", [1, 3, 77])
@pytest.mark.parametrize("add", [True, False])
@torch.no_grad()
def test_the_kernel_matches_the_layers(inputs, outputs, stride, images, add):
    conv, norm = layers(inputs, outputs, stride)
    x = torch.randn(images, inputs, 16, 32, device="cuda").bfloat16()
    other = torch.randn(images, outputs, 16 // stride, 32 // stride, device="cuda").bfloat16() if add else None
    assert fused.is_supported(x, [conv], [norm])
    result = fused.conv_norm_relu(x, conv, norm, other)
    assert fused.FOUND  # it was compiled
    plain = norm.double()(F.conv2d(x.double(), conv.weight.bfloat16().double(), None, stride, 1))
    expected = F.relu(plain + (0 if other is None else other.double()))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert float((result.double() - expected).norm() / expected.norm()) < 3e-3
    torch.testing.assert_close(result.double(), expected, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (4, 4), (2, 2), (1, 1), (14, 6)])
@torch.no_grad()
def test_images_of_any_size(height, width):
    conv, norm = layers(64, 64, 1)
    x = torch.randn(5, 64, height, width, device="cuda").bfloat16()
    result = fused.conv_norm_relu(x, conv, norm)
    expected = F.relu(norm.double()(F.conv2d(x.double(), conv.weight.bfloat16().double(), None, 1, 1)))
    assert float((result.double() - expected).norm() / expected.norm()) < 3e-3


@torch.no_grad()
def test_tensors_of_any_layout():
    conv, norm = layers(32, 32, 1)
    x, other = torch.randn(2, 3, 32, 16, 16, device="cuda").bfloat16()
    expected = fused.conv_norm_relu(x, conv, norm, other)
    conv.to(memory_format=torch.channels_last)
    shifted = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(3, 16, 16, 32).permute(0, 3, 1, 2)
    assert torch.equal(fused.conv_norm_relu(shifted.copy_(x), conv, norm, other), expected)
    assert torch.equal(fused.conv_norm_relu(x, conv.bfloat16(), norm, other), expected)


@torch.no_grad()
def test_the_kernel_can_be_captured(monkeypatch):
    conv, norm = layers(16, 16, 1)
    x = torch.randn(4, 16, 32, 32, device="cuda").bfloat16()
    expected = fused.conv_norm_relu(x, conv, norm, x)
    for loaded in (True, False):
        if not loaded:
            monkeypatch.setattr(fused, "KERNELS", {})
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = fused.conv_norm_relu(x, conv, norm, x)
        graph.replay()
        torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
        assert torch.equal(result, expected) or not loaded
    assert fused.FOUND
    assert not fused.KERNELS  # nothing is compiled during a capture


@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_a_network_gives_the_same_output(monkeypatch, compiled):
    torch.manual_seed(0)
    model = create_model("resnet20", shape=(3, 32, 32), num_classes=10).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(256, 3, 32, 32, device="cuda")
    model.train()(x)  # sets the running statistics
    model.eval()
    exact = model(x)
    with torch.autocast("cuda", torch.bfloat16):
        fast = (torch.compile(model) if compiled else model)(x)
        monkeypatch.setattr(fused, "FOUND", False)
        slow = model(x)
    assert not torch.equal(fast, slow)
    error, usual = (float((out - exact).norm() / exact.norm()) for out in (fast, slow))
    assert error < 1.5 * usual


def test_training_is_not_fused():
    conv, norm = layers(16, 16, 1)
    x = torch.randn(2, 16, 8, 8, device="cuda").bfloat16()
    assert not fused.is_supported(x, [conv], [norm])  # gradients are enabled
    with torch.no_grad():
        assert fused.is_supported(x, [conv], [norm])
        assert not fused.is_supported(x, [conv], [norm.train()])
        assert not fused.is_supported(x.float(), [conv], [norm.eval()])


def test_certificates_record_whether_blocks_were_fused(monkeypatch):
    images, _ = from_arrays((torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8), torch.arange(40) % 10))
    network = create_model("resnet20", shape=(3, 32, 32), num_classes=10)
    target = Target("resnet20", Normalized(network, images.mean, images.std).eval(), images, 0.5)
    forward = [
        describe(target, Settings(0.5, dtype=d), torch.device("cuda", 0))["forward"] for d in ("bfloat16", "float32")
    ]
    assert forward == ["compiled and captured, fused blocks", "compiled and captured"]
    monkeypatch.setattr(fused, "FOUND", False)
    assert describe(target, Settings(0.5, dtype="bfloat16"), torch.device("cuda", 0))["forward"] == forward[1]

"""Which passes are fused, and the fallback without a kernel. tests/gpu/test_fused.py tests the results."""

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


def cuda_input(channels=16, size=32, dtype=torch.bfloat16):
    """A fake CUDA tensor."""
    with FakeTensorMode():
        return torch.empty(2, channels, size, size, dtype=dtype, device="cuda")


def layers(inputs=16, outputs=16, **changes):
    settings = {"kernel_size": 3, "padding": 1, "bias": False} | changes
    return [nn.Conv2d(inputs, outputs, **settings)], [nn.BatchNorm2d(outputs).eval()]


@torch.no_grad()
def test_supported_and_unsupported_passes(device):
    assert fused.is_supported(cuda_input(), *layers())
    assert not fused.is_supported(cuda_input(8), *layers(8, 16))
    assert not fused.is_supported(cuda_input(), *layers(16, 24))
    assert not fused.is_supported(cuda_input(dtype=torch.float32), *layers())
    convs, norms = layers()
    assert not fused.is_supported(cuda_input(), convs, [norms[0].train()])
    with torch.enable_grad():
        assert not fused.is_supported(cuda_input(), *layers())


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [{"bias": True}, {"dilation": 2}, {"groups": 4}, {"kernel_size": 1}, {"padding": 0}, {"padding_mode": "reflect"},
     {"stride": (1, 2)}, {"stride": 3}],
    ids=str,
)  # fmt: skip
def test_unsupported_convolutions(device, changes):
    assert not fused.is_supported(cuda_input(), *layers(**changes))


@torch.no_grad()
def test_mismatched_and_unsupported_layers(device):
    assert not fused.is_supported(cuda_input(), *layers(64))  # the layers themselves refuse this input
    convs, _ = layers()
    _, norms = layers()
    assert not fused.is_supported(cuda_input(), [nn.Identity()], norms)
    for norm in (nn.BatchNorm2d(16, affine=False).eval(), nn.GroupNorm(4, 16), nn.Identity()):
        assert not fused.is_supported(cuda_input(), convs, [norm])


@torch.no_grad()
def test_a_network_can_be_traced(device):
    model = create_model("resnet20", shape=(3, 8, 8), num_classes=10).eval()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))


def test_other_must_have_the_shape_of_the_output(device):
    (conv,), (norm,) = layers()
    with pytest.raises(ValueError, match=r"other has shape \(1, 16, 2, 2\); .* output's shape \(1, 16, 4, 4\)"):
        fused.conv_norm_relu(torch.randn(1, 16, 4, 4), conv, norm, torch.randn(1, 16, 2, 2))


@torch.no_grad()
def test_batch_norm_without_running_statistics(device):
    convs, norms = layers()
    norms[0]._buffers.update(running_mean=None, running_var=None)
    assert not fused.is_supported(cuda_input(), convs, norms)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["conv1", "norm2"])
def test_a_block_with_an_in_model_perturbation_is_not_fused(device, layer):
    model = create_model("resnet20", shape=(3, 32, 32), num_classes=10).eval()
    block = model.blocks[0]
    within = (block.conv1, block.conv2), (block.norm1, block.norm2)
    assert fused.is_supported(cuda_input(), *within)
    FeatureNoise(0.1, layer=f"blocks.0.{layer}").attach(model)
    assert not fused.is_supported(cuda_input(), *within)


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_without_a_gpu_the_layers_run(add, stride):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(16, 32, 3, stride, 1, bias=False), nn.BatchNorm2d(32).eval()
    norm.running_mean.normal_()
    x = torch.randn(3, 16, 9, 7).bfloat16()
    other = torch.randn(3, 32, -(-9 // stride), -(-7 // stride)).bfloat16() if add else None
    assert not fused.is_supported(x, [conv], [norm])
    result = fused.conv_norm_relu(x, conv, norm, other)
    expected = F.relu(norm(conv(x.float())) + (0 if other is None else other.float()))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05)
    torch.library.opcheck(
        torch.ops.maxup.conv_norm_relu.default,
        (x, conv.weight, norm.running_mean, norm.running_var, norm.weight, norm.bias, other, norm.eps, stride),
        test_utils=("test_schema", "test_faketensor"),
    )


def fail(definitions):
    raise RuntimeError("no compiler")


def test_a_failed_compilation_warns_once_and_is_not_repeated(monkeypatch):
    monkeypatch.setattr(fused, "FOUND", True)
    monkeypatch.setattr(fused, "KERNELS", {})
    monkeypatch.setattr(fused, "_compile", fail)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    device = torch.device("cuda", 0)
    with pytest.warns(
        UserWarning, match="layers run separately, because the fused kernel could not be compiled: no compiler"
    ):
        assert fused._kernel(device, "") is None
    assert fused._kernel(device, "") is None  # without another warning
    assert not fused.FOUND
    assert fused.KERNELS == {(0, ""): None}

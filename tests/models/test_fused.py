"""Which passes are fused; tests/gpu/test_fused.py has what comes out."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from maxup import FeatureNoise
from maxup.models import create_model, fused


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(fused, "FOUND", True)


def arriving(channels=16, size=32, dtype=torch.bfloat16):
    """What `fits` asks of a tensor on a GPU."""
    shape = (2, channels, size, size)
    return SimpleNamespace(is_cuda=True, dtype=dtype, shape=shape, numel=lambda: 2 * channels * size**2)


def layers(inputs=16, outputs=16):
    return [nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)], [nn.BatchNorm2d(outputs).eval()]


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
def test_without_running_statistics_it_does_not_fit(device):
    convs, norms = layers()
    norms[0]._buffers.update(running_mean=None, running_var=None)
    assert not fused.fits(arriving(), convs, norms)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["conv1", "norm2"])
def test_a_perturbation_inside_a_block_is_not_passed_over(device, layer):
    model = create_model("resnet20", shape=(3, 32, 32), classes=10).eval()
    block = model.blocks[0]
    within = (block.conv1, block.conv2), (block.norm1, block.norm2)
    assert fused.fits(arriving(), *within)
    FeatureNoise(0.1, layer=f"blocks.0.{layer}").attach(model)
    assert not fused.fits(arriving(), *within)

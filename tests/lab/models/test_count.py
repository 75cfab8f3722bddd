import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from maxup.lab.models import create_model
from maxup.lab.models.count import count_multiply_adds, count_parameters


def test_products_agree_with_the_flop_counter_of_torch():
    """On layers without a bias. torch counts a multiply-add as two operations."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, groups=1, bias=False),
        nn.Conv2d(8, 16, 3, padding=1, groups=4, bias=False),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 5, bias=False),
    )
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 15, 15))
    assert count_multiply_adds(model, (3, 15, 15)) == counter.get_total_flops() // 2


def test_other_layers_by_hand():
    layers = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)]
    by_hand = 64 * (3 + 1) + 2 * 64 + 64 + 64 + 2 * (16 + 1)
    model = nn.Sequential(*layers).train()
    before = model[1].running_mean.clone()
    assert count_multiply_adds(model, (3, 4, 4)) == by_hand
    assert count_parameters(model) == 16 + 8 + 34
    assert model.training
    assert torch.equal(model[1].running_mean, before)
    assert not any(module._forward_hooks for module in model.modules())


# The paper's numbers (by ptflops): image size, parameters in millions, multiply-adds in billions. The paper swaps the
# numbers of ProxylessNet CPU and GPU; this table does not. It has no multiply-adds for ResNet-50.
PAPER = {
    "timm/resnet50": (224, 25.56, None),
    "timm/resnet101": (224, 44.55, 7.85),
    "pytorchcv/proxylessnas_cpu": (224, 4.36, 0.470),
    "pytorchcv/proxylessnas_gpu": (224, 7.12, 0.481),
    "pytorchcv/proxylessnas_mobile14": (224, 6.86, 0.603),
    "timm/tf_efficientnet_b7": (600, 66.35, 38.20),
    "timm/tf_efficientnet_b8": (845, 87.41, 101.79),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_networks_have_its_sizes(name):
    size, parameters, multiply_adds = PAPER[name]
    with torch.device("meta"):
        model = create_model(name, shape=(3, size, size), num_classes=1000)
    assert round(count_parameters(model) / 1e6, 2) == parameters
    if multiply_adds:
        assert count_multiply_adds(model, (3, size, size)) / 1e9 == pytest.approx(multiply_adds, rel=0.02)

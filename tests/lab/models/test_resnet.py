import math

import pytest
import torch

from maxup.lab.models import create_model
from maxup.lab.models.resnet import Block
from tests.oracles import agrees_with_pytorchcv


def test_it_computes_the_same_function_as_pytorchcv():
    assert agrees_with_pytorchcv("resnet20", "resnet20_cifar10") == pytest.approx(0.27e6, rel=0.02)
    assert agrees_with_pytorchcv("resnet110", "resnet110_cifar10") == pytest.approx(1.73e6, rel=0.002)


def test_the_family():
    counts = [create_model(f"resnet{d}", shape=(3, 32, 32), num_classes=10) for d in (20, 32, 44, 56, 110)]
    assert [sum(isinstance(m, Block) for m in net.modules()) for net in counts] == [9, 15, 21, 27, 54]


def test_convolutions_start_as_in_the_code_the_paper_names():
    torch.manual_seed(0)
    weight = create_model("resnet20", shape=(3, 32, 32), num_classes=10).blocks[-1].conv2.weight
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)


@pytest.mark.parametrize("depth", [21, 2])
def test_invalid_depths_are_an_error(depth):
    with pytest.raises(ValueError, match=r"depth=\d+ is invalid; it must be 6n \+ 2, such as 8, 14, 20"):
        create_model("resnet20", shape=(3, 32, 32), num_classes=10, depth=depth)

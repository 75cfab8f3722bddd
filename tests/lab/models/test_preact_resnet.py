import pytest

from tests.oracles import agrees_with_pytorchcv


def test_it_computes_the_same_function_as_pytorchcv():
    assert agrees_with_pytorchcv("preact_resnet110", "preresnet110_cifar10") == pytest.approx(1.73e6, rel=0.002)

import pytest

from maxup.lab.models import create_model
from tests.oracles import agrees_with_pytorchcv


def test_it_computes_the_same_function_as_pytorchcv():
    assert agrees_with_pytorchcv("wrn28_10", "wrn28_10_cifar10") == pytest.approx(36.5e6, rel=0.002)


def test_invalid_depths_are_an_error():
    with pytest.raises(ValueError, match=r"depth=20 is invalid; it must be 6n \+ 4, such as 10, 16, 22"):
        create_model("wrn16_4", shape=(3, 32, 32), num_classes=10, depth=20)

import pytest
import torch

from maxup.lab.models import create_model


def test_the_number_of_parameters():
    model = create_model("conv", shape=(3, 8, 8), num_classes=10, width=4)
    convolutions = 9 * (3 * 4 + 4 * 8 + 8 * 16)
    assert sum(p.numel() for p in model.parameters()) == convolutions + 2 * (4 + 8 + 16) + 16 * 10 + 10


@pytest.mark.parametrize("size", [4, 8, 28, 33])
def test_any_image_size_is_reduced_to_a_quarter(size):
    model = create_model("conv", shape=(1, size, size), num_classes=3, width=2)
    assert model(torch.zeros(2, 1, size, size)).shape == (2, 3)
    assert model[:9](torch.zeros(2, 1, size, size)).shape[-1] == -(-size // 4)


def test_dropout_is_active_in_training_only():
    model = create_model("conv", shape=(1, 8, 8), num_classes=3, width=8, dropout=0.5)
    x = torch.rand(4, 1, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))

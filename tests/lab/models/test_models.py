import torch

from maxup.lab.models import create_model, list_models


def test_every_model_maps_images_to_classes():
    for name in list_models():
        assert create_model(name, shape=(3, 9, 9), num_classes=5)(torch.zeros(2, 3, 9, 9)).shape == (2, 5)
    assert list_models("m*") == ["mlp"]

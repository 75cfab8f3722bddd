import torch
from torch import nn

from maxup.lab.models.normalize import Normalized


def test_pixels_are_normalized_with_the_loaded_mean_and_std():
    model = Normalized(nn.Flatten(), mean=[0.5, 0.25], std=[0.5, 0.125])
    x = torch.rand(3, 2, 4, 4)
    by_hand = torch.stack([(x[:, 0] - 0.5) / 0.5, (x[:, 1] - 0.25) / 0.125], 1)
    torch.testing.assert_close(model(x), by_hand.flatten(1))
    other = Normalized(nn.Flatten(), mean=[0.0, 0.0], std=[1.0, 1.0])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))

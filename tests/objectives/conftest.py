import pytest
import torch


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(16, 3, 8, 8), torch.randint(5, (16,))

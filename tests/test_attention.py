"""Scoring computes attention as the training pass does, although torch has a fast path without gradients."""

import pytest
import torch
from torch import nn

from maxup import MaxUp, TokenDropout


class Encoder(nn.Module):
    """A Transformer with padding: the fast path zeroes it, so the mean over tokens differs."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2).eval()
        self.dropout = nn.Dropout(1e-9)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.dropout(self.encoder(self.words(x), src_key_padding_mask=x == 0).mean(1)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the fast path of frozen layers
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("trained", [("head",), ("head", "encoder"), ("head", "words"), ("head", "encoder", "words")])
@pytest.mark.parametrize("training", [True, False])
def test_a_copy_is_scored_by_the_function_that_is_trained(trained, dropout, training):
    torch.manual_seed(0)
    model = Encoder().requires_grad_(False)
    for name in trained:
        getattr(model, name).requires_grad_(True)
    if training:
        model.encoder.train()
        for module in model.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
    x = torch.randint(2, 50, (8, 12))
    x[:, 6:] = 0
    objective = MaxUp(TokenDropout(0.3, mask_id=1, keep=[0]), m=4, dropout=dropout)
    report = objective.run(model, x, torch.randint(3, (8,))).report
    assert report.replay_error < 1e-5
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the fast path of frozen layers
@pytest.mark.parametrize("trained", [True, False])
def test_an_encoder_that_forward_calls_is_scored_as_in_training(trained):
    torch.manual_seed(0)
    model, head = Encoder(), nn.Linear(3, 3)
    model.requires_grad_(trained)
    x = torch.randint(2, 50, (8, 12))
    x[:, 6:] = 0
    objective = MaxUp(TokenDropout(0.3, mask_id=1, keep=[0]), m=4, forward=lambda head, x: head(model(x)))
    assert objective.run(head, x, torch.randint(3, (8,))).report.replay_error < 1e-5

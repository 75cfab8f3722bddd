"""Accuracy and calibration: negative log-likelihood and expected calibration error, batch by batch.

    ECE = sum_b  n_b / n  |accuracy_b - confidence_b|

Bin b of 15 holds the predictions with a confidence, max softmax, in (b / 15, (b + 1) / 15] (Guo, Pleiss, Sun and
Weinberger, 2017, "On Calibration of Modern Neural Networks").
"""

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 15


class Calibration:
    """Sums over the predictions so far.

    Args:
        device: Device of the sums.

    Example:
        >>> found = Calibration(torch.device("cpu"))
        >>> found.update(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
        >>> found.metrics()
        {'accuracy': 0.5, 'nll': 0.6931471824645996, 'ece': 0.0}
    """

    def __init__(self, device: torch.device) -> None:
        self.count = torch.zeros(BINS, dtype=torch.int64, device=device)
        self.correct, self.confidence = (torch.zeros(BINS, dtype=torch.double, device=device) for _ in range(2))
        self.loss = torch.zeros((), dtype=torch.double, device=device)

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add the predictions of a batch.

        Args:
            logits: Logits, (B, K).
            y: Classes, (B,).
        """
        logits = logits.detach().float()
        confidence, predicted = logits.softmax(1).max(1)  # (B,)
        index = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
        self.count.index_add_(0, index, torch.ones_like(index))
        self.correct.index_add_(0, index, (predicted == y).double())
        self.confidence.index_add_(0, index, confidence.double())
        self.loss += F.cross_entropy(logits, y, reduction="sum")

    def metrics(self) -> dict[str, float]:
        """Return "accuracy", "nll" and "ece" of all predictions so far. There must be one."""
        n = int(self.count.sum())
        error = (self.correct - self.confidence).abs().sum() / n
        return {"accuracy": float(self.correct.sum()) / n, "nll": float(self.loss) / n, "ece": float(error)}

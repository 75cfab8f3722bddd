"""MaxUp in Lightning, one callback: python examples/lightning_digits.py --m 4 (--m 1: standard augmentation)."""

import argparse

import torch
from maxup import Gaussian, MaxUp
from maxup.integrations import MaxUpCallback
from pytorch_lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):
    """A module without any MaxUp code."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of the batch, which holds the worst copies."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per example (default: 4)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (default: 20)")
    args = parser.parse_args()

    seed_everything(0, verbose=False)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=50, shuffle=True)
    callbacks = [MaxUpCallback(MaxUp(Gaussian(0.2), m=args.m))]
    module = Classifier()
    Trainer(max_epochs=args.epochs, callbacks=callbacks, logger=False, enable_checkpointing=False).fit(module, loader)
    with torch.no_grad():
        accuracy = (module.eval()(x[500:]).argmax(1) == y[500:]).float().mean()
    print(f"test accuracy {100 * accuracy.item():.2f} %")


if __name__ == "__main__":
    main()

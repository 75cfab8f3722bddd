"""MaxUp in a plain PyTorch loop: one extra line.

python examples/plain_loop.py            # m = 4 copies
python examples/plain_loop.py --m 1      # standard augmentation
"""

import argparse

import torch
from maxup import Gaussian, MaxUp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train, and print the test accuracy after every epoch."""
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per example (default: 4)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (default: 20)")
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    objective = MaxUp(Gaussian(0.2), m=args.m)
    for epoch in range(args.epochs):
        model.train()
        for xb, yb in loader:
            xb, yb = objective.select(model, xb, yb)  # the worst of m copies of every example
            loss = F.cross_entropy(model(xb), yb)  # the loop you already had
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            accuracy = (model(x[500:]).argmax(1) == y[500:]).float().mean()
        print(f"epoch {epoch + 1:2}  worst-copy loss {loss.item():.3f}  test accuracy {100 * accuracy.item():.2f} %")


if __name__ == "__main__":
    main()

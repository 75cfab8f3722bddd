"""Semi-supervised learning: MaxUp on a labeled batch, and consistency on an unlabeled batch with the same draws.

python examples/semi_supervised.py                # 50 labeled digits and 950 unlabeled ones
python examples/semi_supervised.py --weight 0     # the labeled digits only
"""

import argparse
from typing import Any

import torch
from maxup import Gaussian, MaxUp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


def semi_supervised_loss(
    model: nn.Module, objective: MaxUp, labeled: tuple[Tensor, Tensor], unlabeled: Tensor, weight: float
) -> Any:
    """Return the loss of the worst copies, plus how far predictions move when unlabeled data moves the same way."""
    outcome = objective.run(model, *labeled)
    with torch.no_grad():
        target = model(unlabeled).softmax(1)  # what the model says now
    moved, target = objective.perturbation.apply((unlabeled, target), outcome.draw)  # the draws of the worst copies
    return outcome.loss + weight * F.cross_entropy(model(moved), target)


def main() -> None:
    """Train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train on few labeled and many unlabeled digits.")
    parser.add_argument("--weight", type=float, default=1.0, help="weight of the unlabeled data (default: 1)")
    parser.add_argument("--steps", type=int, default=400, help="steps to train (default: 400)")
    args = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    objective = MaxUp(Gaussian(0.2), m=4)
    for _ in range(args.steps):
        rows, others = torch.randint(50, (50,)), torch.randint(50, 1000, (50,))  # a draw has as many rows as its batch
        semi_supervised_loss(model, objective, (x[rows], y[rows]), x[others], args.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
    accuracy = (model(x[1000:]).argmax(1) == y[1000:]).float().mean()
    print(f"50 labels, weight {args.weight:g}: test accuracy {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()

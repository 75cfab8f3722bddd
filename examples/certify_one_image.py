"""Certify one image: train a small network with noise, then compute the radius in which its prediction holds.

python examples/certify_one_image.py            # a handwritten digit
python examples/certify_one_image.py --index 7
"""

import argparse

import torch
from maxup import Gaussian, MaxUp, Smooth
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

SIGMA = 0.25


def main() -> None:
    """Train, certify, and check the certificate with new noise."""
    parser = argparse.ArgumentParser(description="Certify a digit by randomized smoothing.")
    parser.add_argument("--index", type=int, default=0, help="which test image (default: 0)")
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)  # pixels in [0, 1]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    objective = MaxUp(Gaussian(SIGMA), m=5)  # the worst of 5 noisy copies
    for _ in range(10):
        for rows in torch.randperm(1000).split(50):
            noisy, target = objective.select(model, x[rows], y[rows])
            F.cross_entropy(model(noisy), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    smooth = Smooth(model, num_classes=10, sigma=SIGMA)
    image, label = x[1000 + args.index], int(y[1000 + args.index])
    predicted, radius = smooth.certify(image, n0=100, n=10_000, alpha=0.001, batch_size=1000)
    if predicted == Smooth.ABSTAIN:
        print(f"digit {label}: the smoothed network abstains")
        return
    print(
        f"digit {label}: predicted {predicted}, certified for l2 perturbations below {radius:.3f} (confidence 99.9 %)"
    )
    direction = torch.randn(64)
    moved = image + 0.99 * radius * direction / direction.norm()
    print(f"moved by {0.99 * radius:.3f}: predicted {smooth.predict(moved, n=1000, alpha=0.001, batch_size=1000)}")


if __name__ == "__main__":
    main()

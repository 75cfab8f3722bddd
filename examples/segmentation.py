"""Semantic segmentation: masks move with the images, and the worst of m copies of every image is trained on.

python examples/segmentation.py            # m = 4 copies
python examples/segmentation.py --m 1      # standard augmentation
"""

import argparse

import torch
from maxup import Affine, Compose, Gaussian, MaxUp
from torch import Tensor, nn
from torch.nn import functional as F

SIZE, CLASSES = 20, 3  # background, disk, square


def draw_shapes(count: int) -> tuple[Tensor, Tensor]:
    """Draw a dark disk or a bright square in noise: images (B, 1, H, W) and class ids (B, H, W)."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    kind, center = torch.randint(1, CLASSES, (count, 1, 1)), torch.randint(7, SIZE - 7, (2, count, 1, 1))
    down, right = (rows - center[0]).abs(), (columns - center[1]).abs()
    inside = torch.where(kind == 1, down**2 + right**2 <= 36, torch.maximum(down, right) <= 5)
    mask = torch.where(inside, kind, 0)
    return (mask + 0.5 * torch.randn(count, SIZE, SIZE))[:, None], mask


def main() -> None:
    """Train, and print the mean intersection over union after every epoch."""
    parser = argparse.ArgumentParser(description="Segment disks and squares with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per image (default: 4)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs to train (default: 8)")
    args = parser.parse_args()
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = draw_shapes(256), draw_shapes(256)
    model = nn.Sequential(nn.Conv2d(1, 16, 7, padding=3), nn.ReLU(), nn.Conv2d(16, CLASSES, 7, padding=3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    objective = MaxUp(Compose(Affine(degrees=20, translate=0.1), Gaussian(0.2)), m=args.m)
    for epoch in range(args.epochs):
        for rows in torch.randperm(len(x)).split(32):
            xb, yb = objective.select(model, x[rows], y[rows])  # pixels from outside the image are -100: no label
            F.cross_entropy(model(xb), yb).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            found = model(x_test).argmax(1)
        ious = [((found == c) & (y_test == c)).sum() / ((found == c) | (y_test == c)).sum() for c in range(CLASSES)]
        print(f"epoch {epoch + 1}  mean IoU {100 * torch.stack(ious).mean():.1f} %")


if __name__ == "__main__":
    main()

"""MaxUp in timm's task interface: replace `ClassificationTask` with `MaxUpTask`.

python examples/timm_digits.py            # m = 4 copies
python examples/timm_digits.py --m 1      # standard augmentation
"""

import argparse

import torch
from maxup import Cutout, MaxUp
from maxup.integrations import MaxUpTask
from sklearn.datasets import load_digits
from timm import create_model
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train, and print the test accuracy after every epoch."""
    parser = argparse.ArgumentParser(description="Train a small ResNet of timm on scikit-learn's digits with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per example (default: 4)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (default: 20)")
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True)
    model = create_model("test_resnet", in_chans=1, num_classes=10)  # timm's smallest

    task = MaxUpTask(model, LabelSmoothingCrossEntropy(0.1), maxup=MaxUp(Cutout(3), m=args.m))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=args.epochs)
    for epoch in range(args.epochs):
        task.train()
        for input, target in loader:
            result = task(input, target)
            result["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step(epoch + 1)
        with torch.no_grad():
            accuracy = (task.eval().get_eval_model()(x[1000:]).argmax(1) == y[1000:]).float().mean()
        print(f"epoch {epoch + 1:2}  loss {result['loss'].item():.3f}  test accuracy {100 * accuracy.item():.2f} %")


if __name__ == "__main__":
    main()

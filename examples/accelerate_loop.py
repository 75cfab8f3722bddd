"""MaxUp in an Accelerate loop: the extra line takes the prepared model. The same code runs on one or several devices.

python examples/accelerate_loop.py
torchrun --nproc_per_node 2 examples/accelerate_loop.py
accelerate launch --config_file examples/launch/fsdp.yaml examples/accelerate_loop.py     # GPUs, split weights
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from maxup import Gaussian, MaxUp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train, and print the test accuracy after every epoch."""
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits with MaxUp and Accelerate.")
    parser.add_argument("--epochs", type=int, default=10, help="epochs to train (default: 10)")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)  # the draws of MaxUp differ between processes all the same
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=50 // accelerator.num_processes, shuffle=True)
    test = DataLoader(TensorDataset(x[500:], y[500:]), batch_size=100)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)

    objective = MaxUp(Gaussian(0.2), m=4)
    for epoch in range(args.epochs):
        for xb, yb in train:
            xb, yb = objective.select(model, xb, yb)  # the extra line
            accelerator.backward(F.cross_entropy(model(xb), yb))
            optimizer.step()
            optimizer.zero_grad()
        found = []
        for xb, yb in test:
            with torch.no_grad():
                found.append(accelerator.gather_for_metrics(model(xb).argmax(1) == yb))
        accelerator.print(f"epoch {epoch + 1:2}  test accuracy {100 * torch.cat(found).float().mean():.2f} %")
    # free the model first: otherwise processes on CPUs can abort while Python exits (pytorch/pytorch#190489)
    model, optimizer, train, test = accelerator.free_memory(model, optimizer, train, test)
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Search m and the noise level with Optuna. Bad trials are stopped early.

pip install optuna
python examples/optuna_sweep.py --trials 20
"""

import argparse
from typing import Any

try:
    import optuna
except ImportError:
    raise SystemExit("this example needs Optuna, which is not installed: pip install optuna") from None
import torch
from maxup import Gaussian, MaxUp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

DIGITS = load_digits()
X, Y = torch.tensor(DIGITS.data / 16, dtype=torch.float32), torch.tensor(DIGITS.target)
TRAIN, VALIDATION, TEST = slice(0, 500), slice(500, 1000), slice(1000, None)


def accuracy(model: nn.Module, part: slice) -> float:
    """Return the accuracy on a part of the data in %."""
    correct: Tensor = model(X[part]).argmax(1) == Y[part]
    return 100 * float(correct.float().mean())


def run_trial(trial: Any, epochs: int = 10) -> float:
    """Train with the settings that Optuna suggests; return the validation accuracy."""
    m, sigma = trial.suggest_int("m", 1, 8, log=True), trial.suggest_float("sigma", 0.05, 0.5, log=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    objective = MaxUp(Gaussian(sigma), m=m)
    for epoch in range(epochs):
        for rows in torch.randperm(500).split(50):
            x, y = objective.select(model, X[TRAIN][rows], Y[TRAIN][rows])
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        trial.report(accuracy(model, VALIDATION), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    trial.set_user_attr("test_accuracy", accuracy(model, TEST))
    return accuracy(model, VALIDATION)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search m and sigma on scikit-learn's digits.")
    parser.add_argument("--trials", type=int, default=20, help="settings to try (default: 20)")
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(run_trial, n_trials=parser.parse_args().trials)
    best = study.best_trial
    print(f"best: {best.params}, validation {best.value:.2f} %, test {best.user_attrs['test_accuracy']:.2f} %")

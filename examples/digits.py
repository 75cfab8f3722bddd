"""The benefit and the theorem in one picture: m = 1, 4, 20 copies on scikit-learn's digits.

Trains an MLP on 500 digits with Gaussian perturbations, once for every m and seed, and compares accuracy on clean
images, accuracy under fresh noise, and the norm of the loss's gradient at the input, which Theorem 1 says MaxUp
penalises.

    python examples/digits.py                       # 8 seeds: less than two minutes on two cores
    python examples/digits.py --equal-time          # also m = 1 trained as long as each larger m takes: twice the time
    python examples/digits.py --seeds 3 --m 1 2 50  # other settings
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from maxup import Gaussian, MaxUp, theory
from maxup.engine.environment import environment

METRICS = {
    "clean": "accuracy, clean [%]",
    "noisy": "accuracy under noise 0.3 [%]",
    "gradient": "mean input-gradient norm",
}
Runs = dict[str, list[dict[str, float]]]
SETTING = {
    "model": "MLP 64-512-512-10",
    "train": 500,
    "sigma": 0.2,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "batch": 50,
}


def split(seed: int) -> list[Tensor]:
    """500 training and 1,297 test digits, pixels in [0, 1]; which ones depends on the seed."""
    digits = load_digits()
    parts = train_test_split(
        digits.data.astype("float32") / 16, digits.target, train_size=500, stratify=digits.target, random_state=seed
    )
    return [torch.from_numpy(part) for part in parts]


def train(m: int, seed: int, epochs: int) -> dict[str, float]:
    """One run; the seed decides the split, the initial weights and the order, whatever m is."""
    x, x_test, y, y_test = split(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    maxup = MaxUp(Gaussian(0.2), m=m)
    start = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            maxup(model, x[rows], y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    seconds = time.perf_counter() - start
    noisy, _ = Gaussian(0.3)(x_test, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        clean_accuracy, noisy_accuracy = (
            100 * (model(inputs).argmax(1) == y_test).double().mean().item() for inputs in (x_test, noisy)
        )
    gradient = theory.penalty(model, x_test, y_test, m=m, sigma=0.2).gradient_norm.mean().item()
    return {"clean": clean_accuracy, "noisy": noisy_accuracy, "gradient": gradient, "seconds": seconds}


def summary(runs: Runs) -> dict[str, Any]:
    """Mean, deviation and, against the first row, the paired difference with its 95 % interval."""
    table: dict[str, Any] = {}
    baseline = next(iter(runs))
    for metric in [*METRICS, "seconds"]:
        for name, results in runs.items():
            values = np.array([run[metric] for run in results])
            row = {"mean": values.mean(), "std": values.std(ddof=1)}
            if name != baseline:
                other = np.array([run[metric] for run in runs[baseline]])
                low, high = stats.ttest_rel(values, other).confidence_interval(0.95)
                row |= {"difference": (values - other).mean(), "low": low, "high": high}
            table.setdefault(metric, {})[name] = {key: float(value) for key, value in row.items()}
    return table


def show(table: dict[str, Any], seeds: int) -> str:
    """The summary as text."""
    lines = []
    for metric, name in (METRICS | {"seconds": "seconds of training"}).items():
        lines.append(f"\n{name}, mean ± std of {seeds} seeds")
        for run, row in table[metric].items():
            digits = 3 if metric == "gradient" else 2
            line = f"  {run:<22} {row['mean']:8.{digits}f} ± {row['std']:.{digits}f}"
            if "difference" in row:
                line += f"   {row['difference']:+.{digits}f}  [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
            lines.append(line)
    baseline = next(iter(table["clean"]))
    return "\n".join(lines) + f"\n\nRight: paired difference to {baseline} over the same seeds, with its 95 % interval."


def plot(runs: Runs, path: Path) -> None:
    """One panel a metric: a thin line a seed, the means on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
    places = range(len(runs))
    for panel, (metric, name) in zip(panels, METRICS.items(), strict=True):
        values = np.array([[run[metric] for run in results] for results in runs.values()])  # (m, seeds)
        panel.plot(places, values, color="0.8", linewidth=1, marker="o", markersize=3)
        panel.errorbar(places, values.mean(1), values.std(1, ddof=1), color="C0", linewidth=2, marker="o", capsize=4)
        for place, mean in zip(places, values.mean(1), strict=True):
            text = f"{mean:.3f}" if metric == "gradient" else f"{mean:.2f}"
            panel.annotate(
                text,
                (place, mean),
                xytext=(9, 5 if metric == "gradient" else -12),
                textcoords="offset points",
                fontsize=9,
            )
        panel.set_xticks(places, [name.removeprefix("m = ") for name in runs])
        panel.set_xlim(-0.3, len(runs) - 0.5)
        panel.set_xlabel("m, copies of every example")
        panel.set_title(name, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"MaxUp on 500 digits: mean ± std of {values.shape[1]} seeds; grey, each seed", fontsize=11)
    figure.savefig(path, dpi=130)


def compare(settings: dict[str, tuple[int, int]], seeds: int) -> Runs:
    """Train every setting, (m, epochs), with every seed."""
    runs: Runs = {name: [] for name in settings}
    for seed in range(seeds):
        for name, (m, epochs) in settings.items():
            run = train(m, seed, epochs)
            runs[name].append(run)
            print(
                f"seed {seed + 1}/{seeds}  {name:<22} clean {run['clean']:.2f} %  noisy {run['noisy']:.2f} %  "
                f"gradient {run['gradient']:.3f}  {run['seconds']:.1f} s",
                flush=True,
            )
    return runs


def main() -> None:
    """Run the comparison and write the table, the figure and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[1, 4, 20], help="copies to compare (default: 1 4 20)")
    parser.add_argument("--seeds", type=int, default=8, help="runs of every m, at least 2 (default: 8)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of a run (default: 60)")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for digits.json and digits.png (default: out)"
    )
    parser.add_argument("--equal-time", action="store_true", help="also train the first m as long as the others take")
    args = parser.parse_args()
    if args.seeds < 2 or args.epochs < 1 or min(args.m) < 1:
        parser.error("a deviation needs at least 2 seeds, training at least 1 epoch, and m must be 1 or more")

    runs = compare({f"m = {m}": (m, args.epochs) for m in args.m}, args.seeds)
    longer: Runs = {}
    if args.equal_time:
        seconds = [sum(run["seconds"] for run in results) for results in runs.values()]
        stretched = {m: round(args.epochs * s / seconds[0]) for m, s in zip(args.m[1:], seconds[1:], strict=True)}
        longer = compare({f"m = {args.m[0]}, {e} epochs": (args.m[0], e) for e in stretched.values()}, args.seeds)
    table = summary(runs | longer)
    print(show(table, args.seeds))
    args.out.mkdir(parents=True, exist_ok=True)
    result = {
        "experiment": "digits",
        "setting": SETTING | {"epochs": args.epochs},
        "seeds": list(range(args.seeds)),
        "summary": table,
        "runs": runs | longer,
        "environment": environment(),
    }
    (args.out / "digits.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(runs, args.out / "digits.png")
    print(f"\nWritten: {args.out / 'digits.json'} and {args.out / 'digits.png'}")


if __name__ == "__main__":
    main()

"""What the engine costs over a hand-written loop that does the same work, and what capturing a step saves.

    python -m benchmarks.engine              # CPU, or the GPU where there is one
    python -m benchmarks.engine --out results

Both loops train the same recipe on digits with the same batches: the engine's with its schedule, records and
checkpoints, the minimal one with nothing but the steps. They take turns in one run; what counts are ratios of medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from maxup.engine import loop
from maxup.engine.environment import environment
from maxup.recipes.load import recipe_from
from maxup.recipes.schema import Recipe
from maxup.tasks.vision import Vision


def minimal(recipe: Recipe, device: torch.device) -> float:
    """Seconds of a hand-written loop."""
    task = Vision(recipe, device)
    fused = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, **fused)
    start = time.perf_counter()
    for _ in range(recipe.epochs):
        for batch in task.loader:
            task.step(task.model, batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        for _, x, _ in task.evaluation["test"]:
            with torch.no_grad():
                task.model.eval()(task.prepare(x))
        task.model.train()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def engine(recipe: Recipe, *, captured: bool) -> float:
    """Seconds of the engine's loop, without building the task."""
    with tempfile.TemporaryDirectory() as folder:
        against = loop.reason_against
        if not captured:
            loop.reason_against = lambda *a, **k: "told not to"
        try:
            return float(loop.train(recipe, Path(folder), quiet=True, save_every=1e9)["seconds"])
        finally:
            loop.reason_against = against


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--out", type=Path, help="folder to write engine-<device>.json into")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = recipe_from(
        {
            "data": {"name": "digits", "train_size": 1280},
            "model": {"name": "conv", "args": {"width": args.width}},
            "perturb": [{"name": "cutout", "length": 3}],
            "objective": "maxup",
            "maxup": {"m": 4, "warmup": 0},
            "optim": {"schedule": "constant"},
            "epochs": args.epochs,
            "batch_size": 32,
        }
    )
    ways = {"minimal loop": lambda: minimal(recipe, device), "engine": lambda: engine(recipe, captured=False)}
    if device.type == "cuda":
        ways["engine, captured"] = lambda: engine(recipe, captured=True)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(args.rounds + 1):  # one round to warm up
        for name, way in ways.items():
            seconds = way()
            if round_:
                times[name].append(seconds)
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{args.epochs} epochs of a conv net on digits, m = 4, {device.type}, median of {args.rounds} rounds")
    for name, value in median.items():
        print(f"  {name:<18} {value:8.3f} s   {value / median['minimal loop']:5.2f} of the minimal loop")
    if args.out:
        result = {"benchmark": "engine", "device": device.type, "seconds": median, "epochs": args.epochs}
        result |= {"ratio": {n: v / median["minimal loop"] for n, v in median.items()}, "environment": environment()}
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"engine-{device.type}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

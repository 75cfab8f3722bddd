"""Overhead of the training loop (the "engine") over a hand-written loop, and the gain from capturing a step.

    python -m benchmarks.engine              # on the GPU if there is one, otherwise on the CPU
    python -m benchmarks.engine --out results

Both loops build the same task, make the same steps on the same batches with the same schedule, log the loss every 50
steps, evaluate every epoch and save the weights at the end. The engine can also be killed and resumed. There are two
networks: a small one on digits, for which the overhead per step is largest, and ResNet-20 on 32 x 32 images. The loops
alternate in one run, and the results are ratios of medians.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.result_files import write_result
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.schema import Recipe
from maxup.lab.tasks.vision import Vision
from maxup.lab.train import loop
from maxup.lab.train import step as training_step
from maxup.lab.train.optim import learning_rate

UserCode = dict[str, Callable[..., Any] | None]
SHARED: dict[str, Any] = {
    "objective": {"name": "maxup", "m": 4, "warmup": 0},
    "optim": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "cosine"},
}
SMALL = SHARED | {
    "data": {"name": "digits", "train_size": 1280},
    "model": {"name": "conv", "args": {"width": 32}},
    "perturb": [{"name": "cutout", "length": 3}],
    "batch_size": 32,
}
RESNET = SHARED | {
    "model": {"name": "resnet20"},
    "augment": [{"name": "crop_flip", "padding": 4}],
    "perturb": [{"name": "cutout", "length": 16}],
    "batch_size": 128,
}


def pictures(batches: int) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that makes random 32 x 32 images. The content does not affect the time."""

    def data() -> tuple[Tensor, ...]:
        g = torch.Generator().manual_seed(0)
        n = 128 * batches
        x, y = torch.randint(256, (n + 128, 3, 32, 32), generator=g, dtype=torch.uint8), torch.arange(n + 128) % 10
        return x[:n], y[:n], x[n:], y[n:]

    return data


def minimal(recipe: Recipe, device: torch.device, user_code: UserCode) -> float:
    """Return the seconds of a hand-written loop."""
    torch.manual_seed(recipe.seed)
    task = Vision(recipe, device, **user_code)  # type: ignore[arg-type]
    optim, fused = recipe.optim, {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.SGD(
        task.model.parameters(), lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, **fused
    )
    step, total, running = 0, recipe.epochs * len(task.loader), torch.zeros((), device=device)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log.txt").open("w") as log:
        for _ in range(recipe.epochs):
            for batch in task.loader:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(optim, step / total)
                loss = task.step(task.model, batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                running += loss.detach()
                step += 1
                if step % 50 == 0:
                    print(step, float(running) / 50, file=log)
                    running.zero_()
            sums, count = task.evaluate(task.model, "test")
            print(step, *(float(value) / count for value in sums.values()), file=log)
        torch.save({"model": task.model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "last.pt"))
    return time.perf_counter() - start


def engine(recipe: Recipe, user_code: UserCode, *, captured: bool) -> float:
    """Return the seconds of the engine's loop, without building the task."""
    original, run, seconds = training_step.why_not_capturable, loop.Trainer.run, list[float]()

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(*args)
        finally:
            seconds.append(time.perf_counter() - start)

    with tempfile.TemporaryDirectory() as folder:
        if not captured:
            training_step.why_not_capturable = lambda *a, **k: "disabled by the benchmark"
        loop.Trainer.run = timed  # type: ignore[method-assign, assignment]
        try:
            loop.train(recipe, Path(folder), quiet=True, save_every=1e9, save_best=False, **user_code)  # type: ignore[arg-type]
        finally:
            training_step.why_not_capturable, loop.Trainer.run = original, run  # type: ignore[method-assign]
    return seconds[0]


def compare(recipe: Recipe, user_code: UserCode, rounds: int, device: torch.device) -> dict[str, Any]:
    """Return the seconds of every variant, their medians, and the medians of their ratios to the minimal loop."""
    variants = {
        "minimal loop": lambda: minimal(recipe, device, user_code),
        "engine": lambda: engine(recipe, user_code, captured=False),
    }
    if device.type == "cuda":
        variants["engine, captured"] = lambda: engine(recipe, user_code, captured=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds + 1):  # one round to warm up
        for name in list(variants)[:: 1 if round_ % 2 else -1]:  # alternate the order
            seconds = variants[name]()
            if round_:
                times[name].append(seconds)
    base = times["minimal loop"]
    ratio = {n: statistics.median(a / b for a, b in zip(v, base, strict=True)) for n, v in times.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    return {"seconds": median, "ratio": ratio, "rounds": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the small network")
    parser.add_argument(
        "--batches", type=int, help="batches of the ResNet in each of 2 epochs (default: 5, on a GPU 100)"
    )
    parser.add_argument("--out", type=Path, help="folder for engine-<device>.json")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = args.batches or (100 if device.type == "cuda" else 5)
    none: UserCode = {"model_from": None, "data_from": None}
    with_data: UserCode = {"model_from": None, "data_from": pictures(batches)}
    cases: dict[str, tuple[Recipe, UserCode]] = {
        "conv net on digits": (recipe_from(SMALL | {"epochs": args.epochs}), none),
        "ResNet-20 on 32 x 32": (recipe_from(RESNET | {"epochs": 2}), with_data),
    }
    result: dict[str, Any] = {"benchmark": "engine", "device": device.type, "rounds": args.rounds, "cases": {}}
    for name, (recipe, user_code) in cases.items():
        result["cases"][name] = found = compare(recipe, user_code, args.rounds, device)
        print(f"{name}, batches of {recipe.batch_size}, m = 4, {device.type}, median of {args.rounds} rounds")
        for variant, value in found["seconds"].items():
            print(f"  {variant:<18} {value:8.3f} s   {found['ratio'][variant]:5.3f} of the minimal loop", flush=True)
    if args.out:
        write_result(args.out, f"engine-{device.type}", result)


if __name__ == "__main__":
    main()

"""Seconds per training epoch of a recipe: standard and MaxUp, captured, compiled and plain, in one run.

    python -m benchmarks.epoch --out results                       # ResNet-110 on 50,000 images of CIFAR's shape
    python -m benchmarks.epoch --recipe cifar10/wrn28_10-cutout-maxup --m 10

The images are random bytes, because the content does not affect the speed. Only training steps are timed. Each variant
is warmed up for one epoch (compiled, captured). Then it is timed for several rounds, and the median is reported.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from accelerate import Accelerator

from benchmarks.result_files import write_result
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train import step as training_step
from maxup.lab.train.loop import Trainer


def images(count: int) -> Callable[[], Any]:
    x = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count) % 10
    return lambda: (x, y, x[:1000], y[:1000])


def prepare(recipe_name: str, settings: list[str], count: int | None = None, *, captured: bool = True) -> Trainer:
    """Return a trainer that is ready to step, on `count` random images or on the data of the recipe."""
    recipe = parse_recipe(recipe_name, settings)
    accelerator = Accelerator(mixed_precision=recipe.precision, cpu=not torch.cuda.is_available())
    original = training_step.why_not_capturable
    if not captured:
        training_step.why_not_capturable = lambda *a, **k: "disabled by the benchmark"
    user_code = {"data_from": images(count)} if count else {}
    trainer = Trainer(recipe, Path(mkdtemp()), accelerator, quiet=True, **user_code)
    training_step.why_not_capturable = original
    trainer.state.total = 10**9
    trainer.state.model.train()
    return trainer


def timed(trainer: Trainer, batches: Iterable[Any] | None = None) -> float:
    """Return the mean seconds per step over some batches, or over an epoch."""
    wait()
    start, steps = time.perf_counter(), 0
    for batch in trainer.task.loader if batches is None else batches:
        trainer.step(batch)
        steps += 1
    wait()
    return (time.perf_counter() - start) / steps


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10/resnet110-cutout-maxup")
    parser.add_argument("--m", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=50_000, help="images per epoch")
    parser.add_argument("--ways", nargs="*", help="only variants whose name contains one of these words")
    parser.add_argument("--out", type=Path, help="folder for epoch-<device>.json")
    args = parser.parse_args()
    m, one = ["--objective.m", str(args.m), "--objective.warmup", "0"], ["--objective", "standard"]
    running = ["--objective.norm", "running"]
    plain = ["--compile", "false"]
    variants = {
        "standard": (one, True),
        "maxup": (m, True),
        "maxup, running norm": (m + running, True),
        "maxup, running norm, one wide batch": ([*m, *running, "--objective.chunk_size", str(args.m)], True),
        "standard, not compiled": (one + plain, True),
        "maxup, not compiled": (m + plain, True),
        "standard, plain PyTorch": (one + plain, False),
        "maxup, plain PyTorch": (m + plain, False),
    }
    chosen = {
        n: w for n, w in variants.items() if not args.ways or n == "standard" or any(word in n for word in args.ways)
    }
    epochs, setup = {}, {}
    for name, (settings, captured) in chosen.items():
        start = time.perf_counter()
        epochs[name] = prepare(args.recipe, settings, args.images, captured=captured)
        timed(epochs[name])
        setup[name] = time.perf_counter() - start
        print(f"  {name}: first epoch, including building and compiling: {setup[name]:.1f} s", flush=True)
    seconds = {name: statistics.median(timed(run) for _ in range(args.rounds)) for name, run in epochs.items()}
    steps = args.images // parse_recipe(args.recipe, []).batch_size
    ratio = {name: value / seconds["standard"] for name, value in seconds.items()}
    for name, value in seconds.items():
        print(f"{name:<38} {1e3 * value:8.2f} ms per step {value * steps:8.2f} s per epoch {ratio[name]:6.2f}")
    if args.out:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        result: dict[str, Any] = {"benchmark": "epoch", "device": device, "recipe": args.recipe, "m": args.m}
        result |= {"steps": steps, "seconds_a_step": seconds, "ratio": ratio, "first_epoch": setup}
        write_result(args.out, f"epoch-{device}", result)


if __name__ == "__main__":
    main()

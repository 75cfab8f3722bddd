"""Time of a step in a plain training loop: as it is, with `captured`, and by `maxup train`. Needs a GPU.

    python -m benchmarks.captured --out results

ResNet-110 trains on batches of 256 images of 32 x 32 pixels in bfloat16, with a random crop, a flip and Cutout. This
network is launch-bound: the GPU waits for the CPU to launch kernels. All loops run in one process, in turns, and none
compiles the training pass.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.epoch import prepare
from benchmarks.result_files import write_result
from maxup import CropFlip, Cutout, MaxUp, captured
from maxup.lab.bench.timing import interleaved
from maxup.lab.models.resnet import resnet110
from maxup.losses import cross_entropy

BATCH, STEPS = 256, 10
RUNNING: dict[str, Any] = {"norm": "running", "chunk_size": 4}


def loop(*, whole: bool = False, **settings: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the step of a plain loop: the line of the README, and what PyTorch users write around it."""
    model = resnet110((3, 32, 32), 10).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=2.5e-4, fused=True)
    objective, crop = MaxUp(Cutout(16), **settings), CropFlip(padding=4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            x, y = objective.select(model, x, y)
            loss = cross_entropy(model(x), y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    train = captured(step, objective, optimizer) if whole else step
    return lambda x, y: train(*crop(x, y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for captured-cuda.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("a CUDA graph needs a GPU, and torch finds none")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    x = torch.rand(BATCH, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,), device="cuda")
    recipe = "cifar10/resnet110-cutout-maxup"
    options = ["--compile", "false", "--objective.m", "4", "--objective.warmup", "0"]
    train = prepare(recipe, options, BATCH * STEPS)
    batches = list(train.task.loader)

    def steps(step: Callable[[Tensor, Tensor], Tensor]) -> None:
        for _ in range(STEPS):
            step(x, y)

    def engine() -> None:
        for batch in batches:
            train.step(batch)

    variants: dict[str, Callable[[], object]] = {
        "plain loop, m = 1": partial(steps, loop(m=1)),
        "plain loop, m = 4": partial(steps, loop(m=4)),
        "plain loop, m = 4, capture": partial(steps, loop(m=4, capture=True)),
        "captured, m = 1": partial(steps, loop(whole=True, m=1)),
        "captured, m = 4": partial(steps, loop(whole=True, m=4)),
        "captured, m = 4, running, wide": partial(steps, loop(whole=True, m=4, **RUNNING)),
        "maxup train, m = 4, running, wide": engine,
    }
    times = interleaved(variants, args.rounds, "cuda")
    median = {name: statistics.median(values) / STEPS for name, values in times.items()}
    for name, value in median.items():
        print(f"{name:<36} {1e3 * value:7.2f} ms")
    if args.out:
        result = {"benchmark": "captured", "batch_size": BATCH, "rounds": args.rounds, "median_seconds": median}
        write_result(args.out, "captured-cuda", result)


if __name__ == "__main__":
    main()

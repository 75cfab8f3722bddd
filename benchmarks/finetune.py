"""Images per second of fine-tuning an ImageNet network on photos, for m = 1 and m = 4, with and without decoding.

    python -m benchmarks.finetune --root DIR --out results          # class folders, for example Imagenette
    python -m benchmarks.finetune --root DIR --weights FILE         # start from weights; does not affect speed

Both variants are warmed up and captured first, and then alternate. An epoch reads, decodes and crops every photo in
worker processes. A step alone repeats one batch that is already on the device.
"""

import argparse
import statistics
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from benchmarks.epoch import prepare, timed
from benchmarks.result_files import write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    parser.add_argument("--recipe", default="imagenet/resnet50-cutmix-maxup")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--m", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="steps on one batch per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for finetune-<device>.json")
    args = parser.parse_args()
    shared = ["--data.root", str(args.root), "--data.size", str(args.size), "--batch_size", str(args.batch_size)]
    shared += ["--data.workers", str(args.workers), "--model.weights", str(args.weights or "null")]
    ways = {"m = 1": ["--objective", "standard"], f"m = {args.m}": ["--objective.m", str(args.m)]}
    runs = {name: prepare(args.recipe, shared + settings) for name, settings in ways.items()}
    seconds: dict[str, dict[str, list[float]]] = {name: {"epoch": [], "step": []} for name in runs}
    for round_ in range(args.rounds + 1):  # one round to warm up
        for name, run in runs.items():
            batch = next(iter(run.task.loader))
            run.task.loader.position = 0
            times = {"epoch": timed(run), "step": timed(run, repeat(batch, args.steps))}
            for what, value in times.items() if round_ else ():
                seconds[name][what].append(value)
    rate = {
        name: {what: args.batch_size / statistics.median(values) for what, values in found.items()}
        for name, found in seconds.items()
    }
    for name, found in rate.items():
        print(
            f"{name:<8} {found['epoch']:9.0f} images/s with decoding {found['step']:9.0f} images/s without", flush=True
        )
    if args.out:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        result: dict[str, Any] = {"benchmark": "finetune", "device": device, "recipe": args.recipe}
        result |= {name: getattr(args, name) for name in ("m", "size", "batch_size", "workers", "rounds")}
        result |= {"images_a_second": rate, "not_captured": [run.step.not_captured for run in runs.values()]}
        write_result(args.out, f"finetune-{device}", result)


if __name__ == "__main__":
    main()

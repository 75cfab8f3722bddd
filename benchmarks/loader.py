"""Images per second of the loader for image folders, by number of workers, and of plain PIL in one process.

    python -m benchmarks.loader --root DIR                       # DIR has the folders of Imagenette or ImageNet
    python -m benchmarks.loader --root DIR --data imagenet --size 600 --workers 0 4 16 --out results

"bare PIL" only opens a file and decodes it to RGB, so it is the upper limit for a loader in one process. The variants
alternate in one run over the same images, and the results are ratios of medians.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from maxup.lab.data import load_data
from maxup.lab.data.decode import FORMATS
from maxup.lab.data.folder import Folder
from maxup.lab.data.images import split
from maxup.lab.environment import environment


def bare(folder: Folder) -> Callable[[], object]:
    """Decode every file to RGB."""

    def run() -> None:
        for index in range(len(folder)):
            with Image.open(folder.path(index), formats=FORMATS) as image:
                image.convert("RGB")

    return run


def loading(folder: Folder, workers: int, batch_size: int, training: bool) -> Callable[[], object]:
    """Load one epoch. Workers are started again, as in training."""
    loader = replace(folder, workers=workers).loader(batch_size, device="cpu", training=training, seed=0)
    return lambda: sum(len(y) for _, _, y in loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of the data")
    parser.add_argument("--data", default="imagenette", choices=["imagenette", "imagenet"])
    parser.add_argument("--images", type=int, default=1000, help="images per round")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for loader.json")
    args = parser.parse_args()
    train = load_data(args.data, args.root)[0]
    assert isinstance(train, Folder)
    folder = replace(split(train, args.images, 0)[0] if args.images < len(train) else train, size=args.size)
    cores = len(os.sched_getaffinity(0))
    ways = {"bare PIL": bare(folder), "evaluation, 0 workers": loading(folder, 0, args.batch_size, False)}
    for workers in (n for n in args.workers if n <= cores):
        ways[f"training, {workers} workers"] = loading(folder, workers, args.batch_size, True)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(args.rounds + 1):  # the first round fills the disk cache
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if round_:
                times[name].append(time.perf_counter() - start)
    rate = {name: len(folder) / statistics.median(seconds) for name, seconds in times.items()}
    ratio = {name: value / rate["bare PIL"] for name, value in rate.items()}
    print(f"{len(folder)} images to {args.size} x {args.size}, {cores} cores")
    for name, value in rate.items():
        print(f"{name:<24} {value:8.0f} images per second {ratio[name]:6.2f}")
    if args.out:
        result: dict[str, Any] = {"benchmark": "loader", "data": args.data, "images": len(folder), "size": args.size}
        result |= {"batch_size": args.batch_size, "cores": cores, "images_a_second": rate, "ratio": ratio}
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "loader.json").write_text(json.dumps(result | {"environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

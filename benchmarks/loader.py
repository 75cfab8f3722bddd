"""Images per second of the loader for image folders, by decoder and number of workers, and of plain PIL.

    python -m benchmarks.loader --root DIR                       # DIR has the folders of Imagenette or ImageNet
    python -m benchmarks.loader --root DIR --images 2500 --repeat 8 --out results
    python -m benchmarks.loader --root DIR --short_side 375      # enlarge small photos to the usual size of ImageNet's
    python -m benchmarks.loader --root DIR --data imagenet --size 600 --workers 0 4 16

"bare" variants only open a file and decode it to RGB, so they are the upper limit for a loader in one process. Other
variants use simplejpeg if it is installed, or PIL. The variants alternate in one run over the same images, and the
results are ratios of medians.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from PIL import Image

from benchmarks.result_files import write_result
from maxup.lab.bench.timing import interleaved
from maxup.lab.data import decode, load_data
from maxup.lab.data.decode import FORMATS, read_rgb
from maxup.lab.data.folder import Folder
from maxup.lab.data.images import split


def bare(folder: Folder) -> Callable[[], object]:
    """Decode every file to RGB."""

    def run() -> None:
        for index in range(len(folder)):
            with Image.open(folder.path(index), formats=FORMATS) as image:
                image.convert("RGB")

    return run


def bare_simplejpeg(folder: Folder) -> Callable[[], object]:
    """Decode every file to RGB with the fast decoder."""

    def run() -> None:
        for index in range(len(folder)):
            read_rgb(folder.path(index))

    return run


def loading(folder: Folder, workers: int, batch_size: int, training: bool) -> Callable[[], object]:
    """Load one epoch. Workers are started again, as in training."""
    loader = replace(folder, workers=workers).loader(batch_size, device="cpu", training=training, seed=0)
    return lambda: sum(len(y) for _, _, y in loader)


def with_pil(run: Callable[[], object]) -> Callable[[], object]:
    """Decode with PIL in this process, as if simplejpeg were not installed."""

    def run_with_pil() -> None:
        before, decode.find_simplejpeg = decode.find_simplejpeg, lambda: None  # type: ignore[assignment]
        try:
            run()
        finally:
            decode.find_simplejpeg = before

    return run_with_pil


def enlarge(folder: Folder, short_side: int) -> Folder:
    """Write copies of the photos with this short side, and return their folder."""
    root = Path(mkdtemp())
    for index in range(len(folder)):
        image, path = read_rgb(folder.path(index)), root / folder.path(index).relative_to(folder.root)
        scale = short_side / min(image.size)
        path.parent.mkdir(exist_ok=True)
        size = round(scale * image.width), round(scale * image.height)
        image.resize(size, Image.Resampling.BICUBIC).save(path, format="JPEG", quality=95)
    return replace(folder, root=root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of the data")
    parser.add_argument("--data", default="imagenette", choices=["imagenette", "imagenet"])
    parser.add_argument("--images", type=int, default=1000, help="different images")
    parser.add_argument("--repeat", type=int, default=1, help="read them this often per round")
    parser.add_argument("--short_side", type=int, help="enlarge the images first")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for loader.json")
    args = parser.parse_args()
    train = load_data(args.data, args.root)[0]
    assert isinstance(train, Folder)
    folder = replace(split(train, args.images, 0)[0] if args.images < len(train) else train, size=args.size)
    if args.short_side:
        folder = enlarge(folder, args.short_side)
    folder = folder.subset(list(range(len(folder))) * args.repeat)
    cores = len(os.sched_getaffinity(0))
    ways = {"bare PIL": bare(folder), "evaluation, 0 workers": loading(folder, 0, args.batch_size, False)}
    if decoder := decode.find_simplejpeg():
        ways["bare simplejpeg"] = bare_simplejpeg(folder)
        ways["training, 0 workers, PIL"] = with_pil(loading(folder, 0, args.batch_size, True))
    for workers in (n for n in args.workers if n <= cores):
        ways[f"training, {workers} workers"] = loading(folder, workers, args.batch_size, True)
    times = interleaved(ways, args.rounds, "cpu")
    rate = {name: len(folder) / statistics.median(seconds) for name, seconds in times.items()}
    ratio = {name: value / rate["bare PIL"] for name, value in rate.items()}
    print(f"{len(folder)} images to {args.size} x {args.size}, {cores} cores")
    for name, value in rate.items():
        print(f"{name:<26} {value:8.0f} images per second {ratio[name]:6.2f}")
    if args.out:
        result: dict[str, Any] = {"benchmark": "loader", "data": args.data, "images": len(folder), "size": args.size}
        result |= {"repeat": args.repeat, "short_side": args.short_side, "decoder": "simplejpeg" if decoder else "PIL"}
        result |= {"batch_size": args.batch_size, "cores": cores, "images_a_second": rate, "ratio": ratio}
        write_result(args.out, "loader", result)


if __name__ == "__main__":
    main()

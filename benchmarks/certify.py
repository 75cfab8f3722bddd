"""Speed of certification, and cost of a training epoch for it. Both are ratios measured in one run.

    python -m benchmarks.certify speed --run runs/certify/resnet110-gaussian/seed-0 --out results
    python -m benchmarks.certify epochs --out results

speed: images certified per minute by the usual loop (one image at a time, batches of 400, fp32, eager), and by ours
with fixed and with adaptive sampling. The forward throughput of the bare network is the upper limit; in bfloat16 it is
also measured without the fused pass of maxup.cuda.fused. Without --run the network has random weights: then speeds are
valid, but the number of saved samples is not. Radii of the usual loop and of ours are compared in units of their
Monte-Carlo error; in bfloat16 the network differs too.

epochs: seconds per epoch of 50,000 images with Gaussian noise, MaxUp and SmoothAdv, on random images of CIFAR's shape.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.epoch import prepare, timed, wait
from benchmarks.result_files import write_result
from maxup.cuda import fused
from maxup.cuda.graph import capture_graph
from maxup.lab.certify.analysis import RADII
from maxup.lab.certify.run import Settings, find_device, make_smooth
from maxup.lab.certify.target import Target, load_target
from maxup.lab.data.arrays import from_arrays
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized
from maxup.smoothing.bounds import certified_radius, lower_bound, required_probability
from maxup.smoothing.smooth import DTYPES, Certificate

USUAL_BATCH = 400
EPOCH = 50_000  # images
WARM = 8  # warmup steps: compiled, captured and not timed


@torch.no_grad()
def usual(model: nn.Module, x: Tensor, classes: int, settings: Settings) -> tuple[int, float]:
    """The usual loop: one image, batches of 400, counts copied to the CPU after each batch."""

    def counts(n: int) -> Tensor:
        total = torch.zeros(classes, dtype=torch.long)
        while n > 0:
            size = min(USUAL_BATCH, n)
            n -= size
            batch = x.repeat(size, 1, 1, 1)
            total += model(batch + torch.randn_like(batch) * settings.sigma).argmax(1).cpu().bincount(minlength=classes)
        return total

    top = int(counts(settings.n0).argmax())
    p = lower_bound(int(counts(settings.n)[top]), settings.n, settings.alpha)
    return (-1, 0.0) if p < 0.5 else (top, certified_radius(p, settings.sigma))


def make_target(args: argparse.Namespace) -> Target:
    if args.run is not None:
        return load_target(args.run)
    torch.manual_seed(0)  # the same network every time
    x = torch.randint(256, (20 * args.images, 3, 32, 32), dtype=torch.uint8)
    images, _ = from_arrays((x, torch.arange(len(x)) % 10))
    network = create_model(args.network, shape=(3, 32, 32), num_classes=10)
    return Target(args.network, Normalized(network, images.mean, images.std).eval(), images, 0.5)


def throughput(model: nn.Module, shape: tuple[int, ...], batch: int, dtype: torch.dtype, seconds: float) -> float:
    """Images per second of the compiled network alone. On a GPU it is replayed as a CUDA graph."""
    device = next(model.parameters()).device
    x = torch.rand(batch, *shape, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else x

    def forward() -> None:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            model(x)

    run: Callable[[], None] = forward
    if device.type == "cuda":
        run = capture_graph(forward).replay
    run()
    wait()
    start, passes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or passes < 3:
        run()
        passes += 1
        if passes % 20 == 0:
            wait()
    wait()
    return passes * batch / (time.perf_counter() - start)


def ours(target: Target, settings: Settings, chosen: list[int]) -> tuple[dict[str, Any], list[Certificate]]:
    """Images per minute and copies per second of the library, and the certificates."""
    smooth = make_smooth(target, settings, find_device())
    how = settings.n0, settings.n, settings.alpha, settings.batch_size
    warm = target.pixels(chosen[:1]), settings.n0, settings.n0, 0.1, settings.batch_size
    next(smooth.certify_many(*warm))
    wait()
    start = time.perf_counter()
    found = list(smooth.certify_many(
        target.pixels(chosen), *how, indices=chosen, adaptive=settings.adaptive, radii=settings.radii
    ))  # fmt: skip
    wait()
    seconds, samples = time.perf_counter() - start, sum(c.samples for c in found)
    way = {"images_a_minute": 60 * len(chosen) / seconds, "copies_a_second": samples / seconds}
    return way | {"samples": samples, "saved": 1 - samples / (settings.n * len(chosen))}, found


def bare(target: Target, settings: Settings, seconds: float) -> dict[str, dict[str, float]]:
    """Copies per second of the compiled network alone; in bfloat16 also without the fused pass."""
    how = tuple(target.images.x.shape[1:]), settings.batch_size, DTYPES[settings.dtype], seconds
    name = f"bare network, {settings.dtype}"
    ways = {name: {"copies_a_second": throughput(target.model, *how)}}
    if fused.FOUND and settings.dtype == "bfloat16":
        fused.FOUND = False  # compiles again
        ways[f"{name}, not fused"] = {"copies_a_second": throughput(target.model, *how)}
        fused.FOUND = True
    return ways


def usual_loop(target: Target, settings: Settings, chosen: list[int]) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Images per minute and copies per second of the usual loop, and its predictions and radii."""
    device, classes = find_device(), len(target.images.classes)
    model, x = target.model.to(device), target.pixels(chosen).to(device)
    usual(model, x[0], classes, replace(settings, n=settings.n // 100 + 100))  # warm up
    wait()
    start = time.perf_counter()
    found = [usual(model, image, classes, settings) for image in x]
    wait()
    seconds = time.perf_counter() - start
    way = {"images_a_minute": 60 * len(x) / seconds, "copies_a_second": len(x) * settings.n / seconds}
    return way, found


def speed(args: argparse.Namespace) -> dict[str, Any]:
    chosen = list(range(0, 20 * args.images, 20))
    few = chosen[: args.usual_images]
    target = make_target(args)
    plain = Settings(sigma=args.sigma or target.sigma or 0.5, n=args.n, batch_size=args.batch)
    ways: dict[str, dict[str, Any]] = {}
    fixed: dict[str, list[tuple[int, float]]] = {}
    for dtype in ("float32", "bfloat16"):
        settings = replace(plain, dtype=dtype)
        target = make_target(args)  # a new one each time, because it is compiled in place
        ways[f"fixed, {dtype}"], found = ours(target, settings, chosen)
        fixed[dtype] = [(c.predict, c.radius) for c in found[: len(few)]]
        ways |= bare(target, settings, args.seconds)
        early = replace(settings, adaptive=True, radii=tuple(RADII))
        ways[f"adaptive, {dtype}"], _ = ours(make_target(args), early, chosen)
        print({name: way for name, way in ways.items() if dtype in name}, flush=True)
    ways["usual loop, float32"], slow = usual_loop(make_target(args), plain, few)
    for way in ways.values():
        if "images_a_minute" in way:
            way["times_the_usual"] = way["images_a_minute"] / ways["usual loop, float32"]["images_a_minute"]
    agreement = {dtype: compare(slow, found, plain.sigma, args.n) for dtype, found in fixed.items()}
    if not agreement["float32"]["compared"]:
        print("No radii were compared: use a trained network with --run, and more --usual_images.")
    return {"n": args.n, "batch": args.batch, "images": len(chosen), "usual_images": len(few), "sigma": plain.sigma,
            "subject": target.name, "ways": ways, "agreement": agreement, "fused": fused.launches > 0}  # fmt: skip


def compare(one: list[tuple[int, float]], other: list[tuple[int, float]], sigma: float, n: int) -> dict[str, float]:
    """Difference between two sets of radii, in units of its standard error."""
    scores, same = [], 0
    for (a, r), (b, s) in zip(one, other, strict=True):
        same += a == b
        if a == b >= 0 and max(r, s) < certified_radius(1 - 20 / n, sigma):  # where counts are approximately normal
            z = (r + s) / 2 / sigma
            p = required_probability(z, 1.0)
            error = sigma * math.sqrt(2 * p * (1 - p) / n) * math.sqrt(2 * math.pi) * math.exp(z * z / 2)
            scores.append(abs(r - s) / error)
    return {"same_class": same / len(one), "compared": len(scores), "largest_in_errors": max(scores, default=0.0)}


def epochs(args: argparse.Namespace) -> dict[str, Any]:
    base = f"certify/{args.network}"
    one = ["--objective.warmup", "1", "--model.name", args.network]
    m = ["--objective.warmup", "0"]
    ways = {
        "Gaussian": (f"{base}-gaussian", []),
        "MaxUp, m = 5": (f"{base}-gaussian-maxup", [*m, "--objective.m", "5"]),
        "MaxUp, m = 25": (f"{base}-gaussian-maxup", [*m, "--objective.m", "25"]),
        **{
            f"SmoothAdv, PGD of {steps} steps": ("certify/resnet110-smoothadv", [*one, "--objective.steps", str(steps)])
            for steps in args.steps
        },
    }
    seconds, run = {}, {}
    for name, (recipe, settings) in ways.items():
        run[name] = prepare(recipe, [*settings, "--batch_size", str(args.batch_size)], args.count)
        timed(run[name], itertools.islice(run[name].task.loader, WARM))
        print(f"  {name}: ready", flush=True)
    for name, ready in run.items():
        seconds[name] = statistics.median(timed(ready) for _ in range(args.rounds)) * (EPOCH // args.batch_size)
        print(f"{name:<32} {seconds[name]:8.2f} s per epoch {seconds[name] / seconds['Gaussian']:6.2f}", flush=True)
    ratio = {name: value / seconds["Gaussian"] for name, value in seconds.items()}
    about = {"network": args.network, "images": EPOCH, "timed_images": args.count}
    return about | {"seconds_an_epoch": seconds, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "epochs"])
    parser.add_argument("--run", type=Path, help="speed: folder of a trained run")
    parser.add_argument("--network", default="resnet110", choices=["resnet20", "resnet110"])
    parser.add_argument("--sigma", type=float)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=2000, help="speed: noisy copies per forward pass")
    parser.add_argument("--images", type=int, default=64, help="speed: number of certified images")
    parser.add_argument("--usual_images", type=int, default=4, help="speed: number of images for the usual loop")
    parser.add_argument("--seconds", type=float, default=2, help="speed: how long the bare network is measured")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[2, 4, 10], help="epochs: gradient steps of SmoothAdv's attack"
    )
    parser.add_argument("--count", type=int, default=12_800, help="epochs: number of timed images")
    parser.add_argument("--batch_size", type=int, default=256, help="epochs: batch size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for certify_<what>-<device>.json")
    args = parser.parse_args()
    found = speed(args) if args.what == "speed" else epochs(args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps({k: v for k, v in found.items() if k not in ("ways",)}, indent=1))
    if args.out:
        about = {"benchmark": f"certify {args.what}", "device": device}
        write_result(args.out, f"certify_{args.what}-{device}", about | found)


if __name__ == "__main__":
    main()

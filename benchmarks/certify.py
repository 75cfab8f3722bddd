"""Certification speed, and what an epoch of training for it costs, each as ratios in one run.

    python -m benchmarks.certify speed --run runs/certify/resnet110-gaussian/seed-0 --out results
    python -m benchmarks.certify epochs --out results

speed: images certified a minute by the usual loop (one image at a time, batches of 400, fp32, eager), by ours with
fixed and with adaptive sampling, and the forward throughput of the bare network, which nobody can beat; in bfloat16
also without the fused pass of maxup.cuda.fused. Without --run the network has random weights: then speeds mean
something, samples saved do not. Radii of the usual loop and of ours are compared in units of their Monte-Carlo error;
in bfloat16 the network itself is another, too.

epochs: seconds of an epoch of 50,000 images with Gaussian noise, MaxUp and SmoothAdv, on random images of CIFAR's
shape.
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
from maxup.cuda import fused
from maxup.cuda.graph import record
from maxup.lab.certify.analysis import RADII
from maxup.lab.certify.run import Settings, find_device, make_smooth
from maxup.lab.certify.target import Target, of_folder
from maxup.lab.data.images import from_arrays
from maxup.lab.environment import environment
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized
from maxup.smoothing.bounds import lower_bound, probability_of, radius_of
from maxup.smoothing.smooth import DTYPES, Certificate

USUAL_BATCH = 400
EPOCH = 50_000  # images
WARM = 8  # steps that are compiled, captured and not counted


@torch.no_grad()
def usual(model: nn.Module, x: Tensor, classes: int, settings: Settings) -> tuple[int, float]:
    """The usual loop: one image, batches of 400, counts fetched after each of them."""

    def counts(n: int) -> Tensor:
        found = torch.zeros(classes, dtype=torch.long)
        while n > 0:
            size = min(USUAL_BATCH, n)
            n -= size
            batch = x.repeat(size, 1, 1, 1)
            found += model(batch + torch.randn_like(batch) * settings.sigma).argmax(1).cpu().bincount(minlength=classes)
        return found

    top = int(counts(settings.n0).argmax())
    p = lower_bound(int(counts(settings.n)[top]), settings.n, settings.alpha)
    return (-1, 0.0) if p < 0.5 else (top, radius_of(p, settings.sigma))


def subject_of(args: argparse.Namespace) -> Target:
    if args.run is not None:
        return of_folder(args.run)
    torch.manual_seed(0)  # the same network every time
    x = torch.randint(256, (20 * args.images, 3, 32, 32), dtype=torch.uint8)
    images, _ = from_arrays((x, torch.arange(len(x)) % 10))
    network = create_model(args.network, shape=(3, 32, 32), num_classes=10)
    return Target(args.network, Normalized(network, images.mean, images.std).eval(), images, 0.5)


def throughput(model: nn.Module, shape: tuple[int, ...], batch: int, dtype: torch.dtype, seconds: float) -> float:
    """Images a second of the compiled network alone, replayed as a CUDA graph where there is one."""
    device = next(model.parameters()).device
    x = torch.rand(batch, *shape, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else x

    def forward() -> None:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            model(x)

    run: Callable[[], None] = forward
    if device.type == "cuda":
        run = record(forward).replay
    run()
    wait()
    begun, passes = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or passes < 3:
        run()
        passes += 1
        if passes % 20 == 0:
            wait()
    wait()
    return passes * batch / (time.perf_counter() - begun)


def ours(target: Target, settings: Settings, chosen: list[int]) -> tuple[dict[str, Any], list[Certificate]]:
    """Images a minute and copies a second by the library, and the certificates."""
    smooth = make_smooth(target, settings, find_device())
    how = settings.n0, settings.n, settings.alpha, settings.batch_size
    warm = target.pixels(chosen[:1]), settings.n0, settings.n0, 0.1, settings.batch_size
    next(smooth.certify_many(*warm))
    wait()
    begun = time.perf_counter()
    found = list(smooth.certify_many(
        target.pixels(chosen), *how, indices=chosen, adaptive=settings.adaptive, radii=settings.radii
    ))  # fmt: skip
    wait()
    seconds, samples = time.perf_counter() - begun, sum(c.samples for c in found)
    way = {"images_a_minute": 60 * len(chosen) / seconds, "copies_a_second": samples / seconds}
    return way | {"samples": samples, "saved": 1 - samples / (settings.n * len(chosen))}, found


def bare(target: Target, settings: Settings, seconds: float) -> dict[str, dict[str, float]]:
    """Copies a second of the compiled network alone; in bfloat16 also without the fused pass."""
    how = tuple(target.images.x.shape[1:]), settings.batch_size, DTYPES[settings.dtype], seconds
    name = f"bare network, {settings.dtype}"
    ways = {name: {"copies_a_second": throughput(target.model, *how)}}
    if fused.FOUND and settings.dtype == "bfloat16":
        fused.FOUND = False  # and so compiled anew
        ways[f"{name}, not fused"] = {"copies_a_second": throughput(target.model, *how)}
        fused.FOUND = True
    return ways


def usual_loop(target: Target, settings: Settings, chosen: list[int]) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Images a minute and copies a second by the usual loop, and its answers."""
    device, classes = find_device(), len(target.images.classes)
    model, x = target.model.to(device), target.pixels(chosen).to(device)
    usual(model, x[0], classes, replace(settings, n=settings.n // 100 + 100))  # warm up
    wait()
    begun = time.perf_counter()
    found = [usual(model, image, classes, settings) for image in x]
    wait()
    seconds = time.perf_counter() - begun
    way = {"images_a_minute": 60 * len(x) / seconds, "copies_a_second": len(x) * settings.n / seconds}
    return way, found


def speed(args: argparse.Namespace) -> dict[str, Any]:
    chosen = list(range(0, 20 * args.images, 20))
    few = chosen[: args.usual_images]
    target = subject_of(args)
    plain = Settings(sigma=args.sigma or target.sigma or 0.5, n=args.n, batch_size=args.batch)
    ways: dict[str, dict[str, Any]] = {}
    fixed: dict[str, list[tuple[int, float]]] = {}
    for dtype in ("float32", "bfloat16"):
        settings = replace(plain, dtype=dtype)
        target = subject_of(args)  # each anew: it is compiled in place
        ways[f"fixed, {dtype}"], found = ours(target, settings, chosen)
        fixed[dtype] = [(c.predict, c.radius) for c in found[: len(few)]]
        ways |= bare(target, settings, args.seconds)
        early = replace(settings, adaptive=True, radii=tuple(RADII))
        ways[f"adaptive, {dtype}"], _ = ours(subject_of(args), early, chosen)
        print({name: way for name, way in ways.items() if dtype in name}, flush=True)
    ways["usual loop, float32"], slow = usual_loop(subject_of(args), plain, few)
    for way in ways.values():
        if "images_a_minute" in way:
            way["times_the_usual"] = way["images_a_minute"] / ways["usual loop, float32"]["images_a_minute"]
    agreement = {dtype: compare(slow, found, plain.sigma, args.n) for dtype, found in fixed.items()}
    if not agreement["float32"]["compared"]:
        print("No radii were compared: give a trained network with --run, and more --usual_images.")
    return {"n": args.n, "batch": args.batch, "images": len(chosen), "usual_images": len(few), "sigma": plain.sigma,
            "subject": target.name, "ways": ways, "agreement": agreement, "fused": fused.launches > 0}  # fmt: skip


def compare(one: list[tuple[int, float]], other: list[tuple[int, float]], sigma: float, n: int) -> dict[str, float]:
    """How far two sets of radii are apart, in units of the error of their difference."""
    scores, same = [], 0
    for (a, r), (b, s) in zip(one, other, strict=True):
        same += a == b
        if a == b >= 0 and max(r, s) < radius_of(1 - 20 / n, sigma):  # where counts are about normal
            z = (r + s) / 2 / sigma
            p = probability_of(z, 1.0)
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
        print(f"{name:<32} {seconds[name]:8.2f} s an epoch {seconds[name] / seconds['Gaussian']:6.2f}", flush=True)
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
    parser.add_argument("--batch", type=int, default=2000, help="speed: noisy copies of a forward pass")
    parser.add_argument("--images", type=int, default=64, help="speed: how many are certified")
    parser.add_argument("--usual_images", type=int, default=4, help="speed: how many by the usual loop")
    parser.add_argument("--seconds", type=float, default=2, help="speed: for which the bare network is measured")
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 4, 10], help="epochs: of SmoothAdv's attack")
    parser.add_argument("--count", type=int, default=12_800, help="epochs: images that are timed")
    parser.add_argument("--batch_size", type=int, default=256, help="epochs: images of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder to write certify_<what>-<device>.json into")
    args = parser.parse_args()
    found = speed(args) if args.what == "speed" else epochs(args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = {"benchmark": f"certify {args.what}", "device": device} | found | {"environment": environment()}
    print(json.dumps({k: v for k, v in found.items() if k not in ("ways",)}, indent=1))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"certify_{args.what}-{device}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

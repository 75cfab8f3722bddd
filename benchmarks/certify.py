"""Certification speed, and what an epoch of training for it costs, each as ratios in one run.

    python -m benchmarks.certify speed --run runs/certify/resnet110-gaussian/seed-0 --out results
    python -m benchmarks.certify epochs --out results

speed: images certified a minute by the usual loop (one image at a time, batches of 400, fp32, eager), by ours with
fixed and with adaptive sampling, and the forward throughput of the bare network, which nobody can beat; in bfloat16
also without the fused pass of maxup.models.fused. Without --run the network has random weights: then speeds mean
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.epoch import prepare, timed, wait
from maxup.certify.analysis import RADII
from maxup.certify.bounds import lower_bound, radius_of
from maxup.certify.run import Settings, find_device, make_smooth
from maxup.certify.smooth import DTYPES
from maxup.certify.subject import Subject, of_folder
from maxup.data.images import own_images
from maxup.engine.environment import environment
from maxup.engine.graph import record
from maxup.models import create_model, fused
from maxup.models.normalised import Normalised

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


def subject_of(args: argparse.Namespace) -> Subject:
    if args.run is not None:
        return of_folder(args.run)
    torch.manual_seed(0)  # the same network every time
    x = torch.randint(256, (20 * args.images, 3, 32, 32), dtype=torch.uint8)
    images, _ = own_images((x, torch.arange(len(x)) % 10))
    network = create_model(args.network, shape=(3, 32, 32), classes=10)
    return Subject(args.network, Normalised(network, images.mean, images.std).eval(), images, 0.5)


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


def speed(args: argparse.Namespace) -> dict[str, Any]:
    device = find_device()
    chosen = list(range(0, 20 * args.images, 20))
    ways: dict[str, dict[str, Any]] = {}
    certificates: dict[str, list[tuple[int, float]]] = {}
    for dtype in ("float32", "bfloat16"):
        for name, more in (("fixed", {}), ("adaptive", {"adaptive": True, "radii": tuple(RADII)})):
            subject = subject_of(args)
            sigma = args.sigma or subject.sigma or 0.5
            settings = Settings(sigma, n=args.n, dtype=dtype, batch_size=args.batch, **more)  # type: ignore[arg-type]
            smooth = make_smooth(subject, settings, device)
            how = settings.n0, settings.n, settings.alpha, settings.batch_size
            next(smooth.certify_many(subject.pixels(chosen[:1]), settings.n0, settings.n0, 0.1, args.batch))  # warm up
            wait()
            begun = time.perf_counter()
            found = list(smooth.certify_many(
                subject.pixels(chosen), *how, indices=chosen, adaptive=settings.adaptive, radii=settings.radii
            ))  # fmt: skip
            wait()
            seconds, samples = time.perf_counter() - begun, sum(c.samples for c in found)
            key = f"{name}, {dtype}"
            certificates[key] = [(c.predict, c.radius) for c in found]
            ways[key] = {"images_a_minute": 60 * len(chosen) / seconds, "copies_a_second": samples / seconds}
            ways[key] |= {"samples": samples, "saved": 1 - samples / (settings.n * len(chosen))}
            if name == "fixed":
                shape = tuple(subject.images.x.shape[1:])
                bare = subject.model, shape, args.batch, DTYPES[dtype], args.seconds
                ways[f"bare network, {dtype}"] = {"copies_a_second": throughput(*bare)}
                if fused.FOUND and dtype == "bfloat16":
                    fused.FOUND = False  # and so compiled anew
                    ways["bare network, bfloat16, not fused"] = {"copies_a_second": throughput(*bare)}
                    fused.FOUND = True
            print(key, ways[key], flush=True)
    subject = subject_of(args)
    model = subject.model.to(device)
    few = chosen[: args.usual_images]
    x = subject.pixels(few).to(device)
    usual(model, x[0], len(subject.images.classes), Settings(sigma, n=args.n // 100 + 100))  # warm up
    wait()
    begun = time.perf_counter()
    slow = [usual(model, image, len(subject.images.classes), Settings(sigma, n=args.n)) for image in x]
    wait()
    seconds = time.perf_counter() - begun
    ways["usual loop, float32"] = {
        "images_a_minute": 60 * len(few) / seconds,
        "copies_a_second": len(few) * args.n / seconds,
    }
    per_minute = ways["usual loop, float32"]["images_a_minute"]
    for way in ways.values():
        if "images_a_minute" in way:
            way["times_the_usual"] = way["images_a_minute"] / per_minute
    agreement = {
        dtype: compare(slow, certificates[f"fixed, {dtype}"][: len(few)], sigma, args.n)
        for dtype in ("float32", "bfloat16")
    }
    if not agreement["float32"]["compared"]:
        print("No radii were compared: give a trained network with --run, and more --usual_images.")
    return {"n": args.n, "batch": args.batch, "images": len(chosen), "usual_images": len(few), "sigma": sigma,
            "subject": subject.name, "ways": ways, "agreement": agreement, "fused": fused.launches > 0}  # fmt: skip


def compare(one: list[tuple[int, float]], other: list[tuple[int, float]], sigma: float, n: int) -> dict[str, float]:
    """How far two sets of radii are apart, in units of the error of their difference."""
    scores, same = [], 0
    for (a, r), (b, s) in zip(one, other, strict=True):
        same += a == b
        if a == b >= 0 and max(r, s) < radius_of(1 - 20 / n, sigma):  # where counts are about normal
            z = (r + s) / 2 / sigma
            p = 0.5 * math.erfc(-z / math.sqrt(2))
            error = sigma * math.sqrt(2 * p * (1 - p) / n) * math.sqrt(2 * math.pi) * math.exp(z * z / 2)
            scores.append(abs(r - s) / error)
    return {"same_class": same / len(one), "compared": len(scores), "largest_in_errors": max(scores, default=0.0)}


def epochs(args: argparse.Namespace) -> dict[str, Any]:
    base = f"certify/{args.network}"
    one = ["--smoothadv.warmup", "1", "--model.name", args.network]
    m = ["--maxup.warmup", "0"]
    ways = {
        "Gaussian": (f"{base}-gaussian", []),
        "MaxUp, m = 5": (f"{base}-gaussian-maxup", [*m, "--maxup.m", "5"]),
        "MaxUp, m = 25": (f"{base}-gaussian-maxup", [*m, "--maxup.m", "25"]),
        **{
            f"SmoothAdv, PGD of {steps} steps": ("certify/resnet110-smoothadv", [*one, "--smoothadv.steps", str(steps)])
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

"""What a MaxUp step costs: select beyond its own forward passes, and whole steps against m.

    python -m benchmarks.overhead            # CPU, or the GPU where there is one
    python -m benchmarks.overhead --out results

All variants are timed in turn, round after round in one run; what counts are ratios of the medians. "select but
forwards" is everything select does on this model and batch (protecting the model, drawing, applying, the loss, the
running maximum) with the model's answer given for free.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from maxup import Average, Cutout, MaxUp
from maxup.engine.environment import environment
from maxup.models.resnet import resnet20


def interleaved(variants: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of every variant, timed in turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds + 2):  # two rounds to warm up
        for name, run in variants.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if round_ >= 2:
                times[name].append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder to write overhead-<device>.json into")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = resnet20((3, 32, 32), 10).to(device)
    x, y = torch.rand(args.batch, 3, 32, 32, device=device), torch.randint(10, (args.batch,), device=device)

    logits = torch.rand(args.batch, 10, device=device)

    @torch.no_grad()
    def forward() -> None:
        model(x)

    def step(objective: MaxUp | Average) -> Callable[[], None]:
        def run() -> None:
            objective(model, x, y).backward()
            model.zero_grad()

        return run

    select = MaxUp(Cutout(16), m=4)
    rest = MaxUp(Cutout(16), m=4, forward=lambda model, x: logits)
    variants: dict[str, Callable[[], object]] = {
        "one forward": forward,
        "select, m = 4": lambda: select.select(model, x, y),
        "select but forwards": lambda: rest.select(model, x, y),
    }
    for m in (1, 2, 4, 10):
        variants[f"step, m = {m}"] = step(MaxUp(Cutout(16), m=m))
    variants["step, average of 4"] = step(Average(Cutout(16), m=4))
    times = interleaved(variants, args.rounds, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    overhead = median["select but forwards"] / median["one forward"]
    print(f"ResNet-20, batch {args.batch}, {device}, median of {args.rounds} rounds")
    for name, value in median.items():
        print(f"  {name:<20} {1000 * value:9.2f} ms   {value / median['step, m = 1']:5.2f} of a step with m = 1")
    print(f"select, m = 4, beyond its forward passes: {100 * overhead:.1f} % of one forward pass")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        result = {
            "benchmark": "overhead",
            "batch": args.batch,
            "device": device,
            "rounds": args.rounds,
            "median_seconds": median,
            "select_overhead_of_one_forward": overhead,
            "step_ratio": {name: value / median["step, m = 1"] for name, value in median.items() if "step" in name},
        }
        path = args.out / f"overhead-{device}.json"
        path.write_text(json.dumps(result | {"environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

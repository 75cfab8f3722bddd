"""Cost of a MaxUp step: the overhead of `select` beyond its forward passes, and complete steps by m.

    python -m benchmarks.overhead            # on the GPU if there is one, otherwise on the CPU
    python -m benchmarks.overhead --out results
    python -m benchmarks.overhead --model resnet50 --out results      # from torchvision, at 224 pixels

The variants alternate in one run, and the results are ratios of medians. "select but forwards" is everything that
`select` does except the forward passes: preserving the state, drawing, applying, the loss and the running maximum.
"rewind" restores the state before every copy. "rewind, restoring" does the same for a network whose BatchNorm layers
have a custom forward, so that all buffers are restored.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.result_files import write_result
from maxup import Average, Cutout, MaxUp, MaxUpWarning
from maxup.integrations.torchvision import import_torchvision
from maxup.isolation import preserve_state
from maxup.lab.bench.timing import interleaved
from maxup.lab.models.resnet import resnet20


class CustomBatchNorm(nn.BatchNorm2d):
    """BatchNorm with a custom forward, so that its buffers must be restored."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


def build(name: str) -> tuple[nn.Module, int]:
    """Return the network and the size of its images."""
    if name == "resnet20":
        return resnet20((3, 32, 32), 10), 32
    import_torchvision()
    from torchvision.models import resnet50  # type: ignore[import-untyped]

    return resnet50(num_classes=10), 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet20", "resnet50"], default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for overhead-<device>.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model, size = build(args.model)
    model.to(device)
    custom = build(args.model)[0].to(device)
    for layer in custom.modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = CustomBatchNorm
    x, y = torch.rand(args.batch, 3, size, size, device=device), torch.randint(10, (args.batch,), device=device)

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
    warnings.simplefilter("ignore", MaxUpWarning)  # the fixed logits are the same for all copies
    variants: dict[str, Callable[[], object]] = {
        "one forward": forward,
        "select, m = 4": lambda: select.select(model, x, y),
        "select but forwards": lambda: rest.select(model, x, y),
    }
    for m in (1, 2, 4, 10):
        variants[f"step, m = {m}"] = step(MaxUp(Cutout(16), m=m))
    variants["step, average of 4"] = step(Average(Cutout(16), m=4))
    with preserve_state(model, (x, y)) as rewind, preserve_state(custom, (x, y)) as restoring:
        variants |= {"rewind": rewind, "rewind, restoring": restoring}
        times = interleaved(variants, args.rounds, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    overhead = median["select but forwards"] / median["one forward"]
    restored = (median["rewind, restoring"] - median["rewind"]) / median["one forward"]
    print(f"{args.model}, batch {args.batch}, {device}, median of {args.rounds} rounds")
    for name, value in median.items():
        print(f"  {name:<20} {1000 * value:9.2f} ms   {value / median['step, m = 1']:5.2f} of a step with m = 1")
    print(f"select, m = 4, beyond its forward passes: {100 * overhead:.1f} % of one forward pass")
    print(f"restoring every buffer before a copy: {100 * restored:.1f} % of one forward pass")
    if args.out:
        result = {
            "benchmark": "overhead",
            "model": args.model,
            "batch": args.batch,
            "device": device,
            "rounds": args.rounds,
            "median_seconds": median,
            "select_overhead_of_one_forward": overhead,
            "restoring_of_one_forward_per_copy": restored,
            "step_ratio": {name: value / median["step, m = 1"] for name, value in median.items() if "step" in name},
        }
        write_result(args.out, f"overhead{'' if args.model == 'resnet20' else '-' + args.model}-{device}", result)


if __name__ == "__main__":
    main()

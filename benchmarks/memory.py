"""Peak memory of a MaxUp step by m. It does not grow with m, unlike the average, which keeps all graphs.

    python -m benchmarks.memory              # on the GPU if there is one, otherwise on the CPU
    python -m benchmarks.memory --out results

The peak is exact: it counts every allocation and release of PyTorch's allocator during one step.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.result_files import write_result
from maxup import Average, Cutout, MaxUp
from maxup.lab.bench.memory import peak_bytes
from maxup.lab.models.resnet import resnet20


def measure(batch: int, copies: list[int], device: str) -> dict[str, dict[int, int]]:
    """Return the peak bytes of a training step of MaxUp, and of the average over m copies, which keeps m graphs."""
    torch.manual_seed(0)
    model = resnet20((3, 32, 32), 10).to(device)
    x, y = torch.rand(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def step(objective: MaxUp | Average) -> Callable[[], None]:
        def run() -> None:
            objective(model, x, y).backward()
            model.zero_grad()

        return run

    ways: dict[str, dict[int, MaxUp | Average]] = {
        "maxup": {m: MaxUp(Cutout(16), m=m) for m in copies},
        "average": {m: Average(Cutout(16), m=m) for m in copies if m <= 4},
    }
    step(MaxUp(Cutout(16), m=2))()  # the first step allocates buffers that stay
    return {name: {m: peak_bytes(step(o), device) for m, o in sized.items()} for name, sized in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path, help="folder for memory-<device>.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = measure(args.batch, [1, 2, 4, 16, 64], device)
    base = found["maxup"][1]
    print(f"peak memory of a training step, ResNet-20, batch {args.batch}, {device}")
    for name, sized in found.items():
        for m, size in sized.items():
            print(f"  {name:<8} m = {m:<3} {size / 2**20:8.1f} MiB   {size / base:5.2f} x m = 1")
    ratio = found["maxup"][64] / found["maxup"][2]
    print(f"m = 64 over m = 2: {ratio:.3f}")
    if args.out:
        result = {
            "benchmark": "memory",
            "batch": args.batch,
            "device": device,
            "peak_bytes": found,
            "ratio_64_2": ratio,
        }
        write_result(args.out, f"memory-{device}", result)


if __name__ == "__main__":
    main()

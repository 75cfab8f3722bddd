"""Examples per second of training in one and in several processes, for m = 1 and m = 4, in one run.

    python -m benchmarks.processes --out results            # 1 and 2 processes
    python -m benchmarks.processes --processes 1 2 4 8      # on a machine with as many cores or GPUs

"same batch" splits the recipe's batch over the processes. "larger batch" gives every process a whole one. Numbers of
processes alternate, and the ratios are those of medians to one process. The images are random bytes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.epoch import prepare, timed
from benchmarks.result_files import write_result


def worker(args: argparse.Namespace) -> None:
    """Time steps in one process of several. Rank 0 writes examples per second."""
    torch.set_num_threads(1)
    settings = ["--model.name", args.network, "--batch_size", str(args.batch_size), "--objective.m", str(args.m)]
    trainer = prepare(args.recipe, [*settings, "--objective.warmup", "0"], 4 * args.batch_size)
    batch = next(iter(trainer.task.loader))
    timed(trainer, repeat(batch, 2))  # warm up
    seconds = timed(trainer, repeat(batch, args.steps))
    if trainer.accelerator.is_main_process:
        args.worker.write_text(json.dumps(args.batch_size / seconds))
    accelerator = trainer.accelerator
    del trainer  # free the model first: otherwise the process can abort while Python exits (pytorch/pytorch#190489)
    accelerator.free_memory()
    accelerator.end_training()


def launch(args: argparse.Namespace, processes: int, batch_size: int, m: int) -> float:
    """Return the examples per second of this number of processes."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        options = {"worker": result, "batch_size": batch_size, "m": m, "steps": args.steps}
        options |= {"recipe": args.recipe, "network": args.network}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*start, "-m", "--", "benchmarks.processes", *words], check=True, env=env)
        return float(json.loads(result.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10/resnet110-cutout-maxup")
    parser.add_argument("--network", default="resnet20", help="instead of the recipe's")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch_size", type=int, default=128 if torch.cuda.is_available() else 32)
    parser.add_argument("--m", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10 if torch.cuda.is_available() else 5, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="folder for processes-<device>.json")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    rates: dict[str, dict[int, list[float]]] = {}
    for _ in range(args.rounds):
        for m in (1, args.m):
            for processes in args.processes:
                speed: dict[int, float] = {}  # by batch size; with one process, both are the same
                for what, batch_size in (("same", args.batch_size), ("larger", args.batch_size * processes)):
                    if batch_size not in speed:
                        speed[batch_size] = launch(args, processes, batch_size, m)
                    measured = rates.setdefault(f"m = {m}, {what} batch", {n: [] for n in args.processes})
                    measured[processes].append(speed[batch_size])
    rate = {name: {n: statistics.median(values) for n, values in measured.items()} for name, measured in rates.items()}
    ratio = {name: {n: value / found[args.processes[0]] for n, value in found.items()} for name, found in rate.items()}
    for name, found in rate.items():
        for n, value in found.items():
            print(f"{name:<22} {n:3} processes {value:10.1f} examples per second {ratio[name][n]:6.2f}")
    if args.out:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        result: dict[str, Any] = {"benchmark": "processes", "device": device, "recipe": args.recipe}
        result |= {name: getattr(args, name) for name in ("network", "batch_size", "steps", "rounds")}
        result |= {"cores": len(os.sched_getaffinity(0)), "examples_a_second": rate, "ratio": ratio}
        write_result(args.out, f"processes-{device}", result)


if __name__ == "__main__":
    main()

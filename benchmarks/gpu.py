"""Measure the cost of a step on a GPU, with all networks and training loops, one after the other.

    python -m benchmarks.gpu --out runs/gpu
    python -m benchmarks.gpu --out runs/gpu --only resnet50 bert --seconds 540

Each command of COMMANDS runs in its own process and writes to a folder of OUT. Commands that this commit has finished
are skipped, so the same command line continues after an interruption. `results/bench/NAME.json` is the bench.json of a
folder, and `results/cost.png` the cost.png of ResNet-50.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from maxup.lab.environment import environment

WIDE = "maxup maxup_wide maxup_compiled_wide maxup_fast"
COMPILED = "--rounds 6 --precision bf16 --compile --profile"
CAPTURED = "--rounds 6 --precision bf16 --step captured --profile"
COMMANDS = {  # in the order of their importance
    "resnet50": f"maxup bench benchmarks.networks:resnet50 --m 4 --variants {WIDE} {COMPILED}",
    "vit": f"maxup bench benchmarks.networks:vit --m 4 --variants {WIDE} {COMPILED}",
    "bert": f"maxup bench benchmarks.networks:bert --m 4 --variants maxup maxup_no_dropout maxup_fast {COMPILED}",
    "speednet": "maxup bench benchmarks.networks:speednet --m 4 "
    f"--variants {WIDE} maxup_captured --rounds 6 --precision bf16 --profile",
    "wrn": f"maxup bench benchmarks.networks:wrn --m 10 --variants {WIDE} {COMPILED}",
    "resnet110": f"maxup bench benchmarks.networks:resnet110 --m 4 --variants {WIDE} {CAPTURED}",
    "noise": f"maxup bench benchmarks.networks:noise --m 25 --variants {WIDE} maxup_shortlist {CAPTURED}",
    "crops": f"maxup bench benchmarks.networks:crops --m 4 --variants {WIDE} {CAPTURED}",
    "captured": "benchmarks.captured",
    "language": "benchmarks.language",
    "epoch": "benchmarks.epoch",
    "certify": "benchmarks.certify epochs",
    "cost": "maxup bench benchmarks.networks:resnet50 --m 2 4 8 --variants maxup maxup_compiled_wide maxup_fast "
    f"{COMPILED}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="NAME",
                        help=f"commands to run, of {', '.join(COMMANDS)} (default: all)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    args = parser.parse_args()
    start, failed = time.monotonic(), []
    for name in args.only:
        folder = args.out / name
        if _is_finished(folder):
            print(f"{name}: finished before", flush=True)
            continue
        left = None if args.seconds is None else args.seconds - (time.monotonic() - start)
        print(f"{name}: {COMMANDS[name]}", flush=True)
        command = [sys.executable, "-m", *shlex.split(COMMANDS[name]), "--out", str(folder)]
        try:
            code = subprocess.run(command, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            raise SystemExit(f"stopped in {name} after {args.seconds:g} seconds; run the same command again") from None
        if code:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _is_finished(folder: Path) -> bool:
    """Whether a folder has a result of this commit."""
    commit = environment()["commit"]
    return any(json.loads(file.read_text())["environment"]["commit"] == commit for file in folder.glob("*.json"))


if __name__ == "__main__":
    main()

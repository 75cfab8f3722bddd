"""Run the harnesses for a while and count outcomes.

python -m tests.torture                                  all of them, two at a time, ten minutes; writes the table
python -m tests.torture exports --seconds 20             one of them, for 20 seconds
python -m tests.torture exports --start 17 --cases 1     one case again, as it was
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

HARNESSES = {  # the class that makes it, and its share of the time
    "io_errors": ("interruptions:io_errors", 0.30),
    "kills": ("interruptions:kills", 0.20),
    "recipes": ("recipes:Recipes", 0.10),
    "arguments": ("arguments:Arguments", 0.10),
    "certificates": ("certificates:Certificates", 0.10),
    "exports": ("exports:Exports", 0.10),
    "run_folders": ("run_folders:RunFolders", 0.10),
}
ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Count outcomes of mutated input.")
    parser.add_argument("harness", nargs="?", choices=list(HARNESSES), help="default: all of them")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MAXUP_TORTURE_SEED", 0)))
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("MAXUP_TORTURE_SECONDS", 600)))
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="how many at most")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "torture.json", help="where all counts go")
    args = parser.parse_args()
    if args.harness:
        row = torture(args.harness, args.seed, args.seconds, args.start, args.cases)
        print(json.dumps(row))
        return int(row["failed"])
    return torture_all(args.seed, args.seconds, args.out)


def torture(name: str, seed: int, seconds: float, start: int = 0, cases: int | None = None) -> dict[str, Any]:
    """Run one harness in this process; failures go to stderr."""
    from tests.torture.outcomes import FAILURES, KINDS

    module, _, factory = HARNESSES[name][0].partition(":")
    counts = dict.fromkeys(KINDS, 0)
    with TemporaryDirectory() as place:
        harness = getattr(import_module(f"tests.torture.{module}"), factory)(Path(place))
        number, end = start, time.monotonic() + seconds
        while time.monotonic() < end and (cases is None or number < start + cases):
            kind, what = harness.case(number, Random(f"{seed} {name} {number}"))
            counts[kind] += 1
            if kind in FAILURES or cases == 1:
                print(f"{name} {number}: {kind}: {what}\n", file=sys.stderr, flush=True)
            number += 1
    return {"name": name, "cases": number - start, **counts, "failed": any(counts[kind] for kind in FAILURES)}


def torture_all(seed: int, seconds: float, out: Path) -> int:
    """Run every harness in a process of its own, two at a time; print the table, and write it as JSON."""

    def one(name: str) -> dict[str, Any]:
        share = 2 * seconds * HARNESSES[name][1]
        words = [sys.executable, "-m", "tests.torture", name, "--seed", str(seed), "--seconds", str(share)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # forks want neither
        done = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(one, HARNESSES))
    from benchmarks.tables import counts
    from maxup.lab.environment import environment
    from maxup.lab.storage.atomic_io import write_json

    found = {"seed": seed, "seconds": seconds, "harnesses": rows, "environment": environment()}
    write_json(out, found)
    print(counts(found))
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

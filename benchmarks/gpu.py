"""Measure the cost of a step on a GPU, with all networks and training loops.

    python -m benchmarks.gpu --out runs/gpu --tests
    python -m benchmarks.gpu --out runs/gpu --only resnet50 bert --seconds 540

Each command of COMMANDS runs in its own process and writes to a folder of OUT. All of them compile and warm up at the
same time, because that takes much longer than timing. Then each one times its steps while the others wait. Commands
that this commit has finished are skipped, so the same command line continues after an interruption. MAXUP_DATA is the
folder with CIFAR-10, and with Penn Treebank for the text of the language model.

`results/bench/NAME.json` is the bench.json of a folder, and `results/cost.png` the cost.png of ResNet-50.
"""

import argparse
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from maxup.errors import CheckpointError
from maxup.lab.bench import timing
from maxup.lab.environment import environment
from maxup.lab.storage.locks import locked

WITH_DROPOUT = "maxup maxup_no_dropout maxup_fast maxup_fast_captured"
USUAL = "maxup maxup_wide maxup_compiled_wide maxup_fast"
GRAPHS = "maxup_captured maxup_fast_captured"
COMPILED = "--rounds 6 --precision bf16 --compile --profile"
CAPTURED = "--rounds 6 --precision bf16 --step captured --profile"
COMMANDS = {  # in the order of their importance
    "resnet50": "maxup bench benchmarks.networks:resnet50 --m 2 4 8 --variants maxup maxup_compiled_wide "
    f"maxup_captured maxup_fast {COMPILED}",
    "vit": f"maxup bench benchmarks.networks:vit --m 4 --variants {USUAL} {GRAPHS} {COMPILED}",
    "bert": f"maxup bench benchmarks.networks:bert --m 4 --variants {WITH_DROPOUT} {COMPILED}",
    "speednet": "maxup bench benchmarks.networks:speednet --m 4 "
    f"--variants {USUAL} {GRAPHS} --rounds 6 --precision bf16 --profile",
    "wrn": f"maxup bench benchmarks.networks:wrn --m 10 --variants {USUAL} {GRAPHS} {COMPILED}",
    "resnet110": f"maxup bench benchmarks.networks:resnet110 --m 4 --variants {USUAL} {CAPTURED}",
    "noise": f"maxup bench benchmarks.networks:noise --m 25 --variants {USUAL} maxup_shortlist_wide {CAPTURED}",
    "crops": f"maxup bench benchmarks.networks:crops --m 4 --variants {USUAL} {CAPTURED}",
    "captured": "benchmarks.captured",
    "language": "benchmarks.language",
    "fast_modes": "benchmarks.fast_modes --data $MAXUP_DATA",
    "epoch": "benchmarks.epoch",
    "certify": "benchmarks.certify epochs",
}
ALONE = ("epoch", "certify")  # time their steps by themselves, so they start when no other command runs
TESTS = f"{sys.executable} -m pytest -q -n 4 tests/gpu"
# Files in the folder of a command: it waits to time its steps, may begin, and has finished (with the commit).
READY, GO, DONE = "ready", "go", "done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="NAME",
                        help=f"commands to run, of {', '.join(COMMANDS)} (default: all)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--tests", action="store_true", help="run tests/gpu while the networks compile")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_in_turn(args.child, args.out)
        return
    try:
        with locked(args.out):
            run_all(args.out, list(dict.fromkeys(args.only)), time.monotonic() + args.seconds, tests=args.tests)
    except CheckpointError as error:
        raise SystemExit(str(error)) from None


def run_all(out: Path, names: list[str], end: float, *, tests: bool) -> None:
    """Run the commands that are not finished, and the tests."""
    commit = environment(on_gpu=False)["commit"]
    todo = [name for name in names if not _is_finished(out / name, commit)]
    if needs_data := [name for name in todo if "$MAXUP_DATA" in COMMANDS[name] and "MAXUP_DATA" not in os.environ]:
        raise SystemExit(
            f"MAXUP_DATA is not set; set it to the folder with CIFAR-10, or leave {needs_data[0]} out of --only"
        )
    for name in names:
        print(f"{name}: {COMMANDS[name] if name in todo else 'finished before'}", flush=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed = list[str]()
    try:
        if tests:
            running["tests"] = _start(out / "tests", shlex.split(TESTS))
        for name in (name for name in todo if name not in ALONE):
            running[name] = _start_child(name, out)
        for name, process in running.items():
            while process.poll() is None and not (out / name / READY).exists():
                _sleep(end, name, failed)
        for name in (*running, *(name for name in todo if name in ALONE)):
            if name not in running:
                running[name] = _start_child(name, out)
            (out / name / GO).touch()
            begun = time.monotonic()
            while running[name].poll() is None:
                _sleep(end, name, failed)
            waited = (out / name / READY).exists() or name in ALONE or name == "tests"
            if running[name].returncode or not waited:  # otherwise it timed its steps beside other commands
                failed.append(name)
            else:
                (out / name / DONE).write_text(str(commit))
            print(f"{name}: {time.monotonic() - begun:.0f} s\n{_last_line(out / name)}", flush=True)
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; see log.txt in their folders")


def run_in_turn(name: str, out: Path) -> None:
    """Run a command that waits for its turn before it times its steps."""
    interleaved, parent = timing.interleaved, os.getppid()

    def in_turn(*args: Any, **kwargs: Any) -> dict[str, list[float]]:
        torch.cuda.empty_cache()  # for the other commands
        (out / name / READY).touch()
        while not (out / name / GO).exists():
            if os.getppid() != parent:  # it was killed
                sys.exit(1)
            time.sleep(0.05)
        return interleaved(*args, **kwargs)

    timing.interleaved = in_turn  # before the modules that import it
    module, *arguments = map(os.path.expandvars, shlex.split(COMMANDS[name]))
    sys.argv = [module, *arguments, "--out", str(out / name)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _start_child(name: str, out: Path) -> subprocess.Popen[bytes]:
    return _start(out / name, [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--child", name])


def _start(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (READY, GO, DONE):
        (folder / name).unlink(missing_ok=True)
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # to end its children, too


def _sleep(end: float, name: str, failed: list[str]) -> None:
    if time.monotonic() > end:
        before = f"; failed before: {', '.join(failed)}" if failed else ""
        raise SystemExit(f"stopped in {name}, because the time is over{before}; run the same command again")
    time.sleep(0.05)


def _last_line(folder: Path) -> str:
    lines = (folder / "log.txt").read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


def _is_finished(folder: Path, commit: str | None) -> bool:
    """Whether a command has finished at this commit, which must be clean."""
    done = folder / DONE
    return commit is not None and not commit.endswith("+") and done.exists() and done.read_text() == commit


def stop_with_children() -> None:
    """Let SIGTERM and SIGHUP also end the commands."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


if __name__ == "__main__":
    stop_with_children()
    main()

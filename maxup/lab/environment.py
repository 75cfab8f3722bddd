"""The environment of a measurement: commit, command, versions and hardware. It is written to every result file."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import maxup


def environment(*, on_gpu: bool | None = None) -> dict[str, Any]:
    """Return the commit, command, versions and hardware of this process.

    `on_gpu` defaults to whether there is a GPU.
    """
    on_gpu = torch.cuda.is_available() if on_gpu is None else on_gpu
    return {
        "commit": _commit(),
        "command": command(),
        "versions": {"python": platform.python_version(), "maxup": maxup.__version__, "torch": torch.__version__}
        | {name: v for name in ("numpy", "scikit-learn", "scipy") if (v := _version(name))},
        "shared_gpu": on_gpu and "CUDA_MPS_PIPE_DIRECTORY" in os.environ,  # if so, timings are not comparable
        "hardware": torch.cuda.get_device_name() if on_gpu else _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},  # of glibc
    }


def command() -> str | None:
    """Return the command line of `maxup` or of `python -m benchmarks.NAME`, without a launcher; otherwise None."""
    if not sys.argv:  # an embedded interpreter
        return None
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m
    module = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem
    if module.partition(".")[0] not in ("maxup", "benchmarks"):
        return None
    return shlex.join([*([] if module == "maxup" else ["python", "-m"]), module, *sys.argv[1:]])


def _commit() -> str | None:
    """Return the commit of the source tree, with a "+" if the tree is dirty. Changes in results/ do not count.

    The environment variable MAXUP_COMMIT overrides it, for example in a container without the repository.
    """

    def git(*args: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    if commit := os.environ.get("MAXUP_COMMIT"):
        return commit
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # fails if we are installed inside another repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ":/", ":!/results") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())

"""Where a number was measured: commit, versions and hardware, written beside every result."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import maxup


def environment() -> dict[str, Any]:
    """Commit, versions and hardware of this run.

    Example:
        >>> environment()["threads"] >= 1
        True
    """
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), "maxup": maxup.__version__, "torch": torch.__version__}
        | {name: v for name in ("numpy", "scikit-learn", "scipy") if (v := _version(name))},
        "shared_gpu": torch.cuda.is_available() and "CUDA_MPS_PIPE_DIRECTORY" in os.environ,  # then times mean nothing
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the source tree, with "+" where files other than results differ from it.

    Where the checkout is not the source's own (in a container, say), MAXUP_COMMIT says which it is, "+" included.
    """

    def git(*args: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    if told := os.environ.get("MAXUP_COMMIT"):
        return told
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed within another's checkout, it is not ours
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

"""Set before torch loads: some CPUs announce bf16 instructions beyond what they run."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or it asks the network for its newest version

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a test must not fail because the machine is busy
torch.set_num_threads(1)  # the tests run in two processes
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job, whose children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup, likewise
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Real data: the folder MAXUP_DATA, or what shared/data/unpack.py makes (MAXUP_SHARED says where shared/ is)."""
    if named := os.environ.get("MAXUP_DATA"):
        yield Path(named)
        return
    shared = Path(os.environ.get("MAXUP_SHARED") or Path(__file__).parents[2] / "shared")
    script = shared / "data" / "unpack.py"
    if not script.exists():
        pytest.skip(f"no real data: MAXUP_DATA is not set and there is no {script}")
    folder = tmp_path_factory.mktemp("data")
    names = ["cifar10", "cifar100-partial", "imagenette-subset", "ptb", "wikitext-2"]
    command = [sys.executable, script, folder, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no real data: {script} says {done.stderr.strip().splitlines()[-1]}")
    yield folder
    shutil.rmtree(folder)

"""Environment and fixtures of all tests."""

import os

# Before torch is imported: some CPUs report bf16 instructions that they cannot run.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # no request for its newest version

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a busy machine must not fail a test
torch.set_num_threads(1)  # tests run in two processes
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a shell's background job, whose children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _no_files_at_home(tmp_path_factory):
    """Runs with user code are signed with a key of the user: use another key in tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _no_user_code_left(tmp_path_factory):
    """Forget modules of temporary folders: another test may write a different module of the same name."""
    before, path = set(sys.modules), list(sys.path)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Folder of real data: MAXUP_DATA, or unpacked by shared/data/unpack.py (MAXUP_SHARED is the path of shared/)."""
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
        pytest.skip(f"no real data: {script} failed: {done.stderr.strip().splitlines()[-1]}")
    yield folder
    shutil.rmtree(folder)

"""Every harness for a while, without a failure. MAXUP_TORTURE_SECONDS is how long for all of them."""

import os
import subprocess
import sys

import pytest

from tests.torture.__main__ import HARNESSES, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", HARNESSES)
def test_no_failure(name):
    seconds = float(os.environ.get("MAXUP_TORTURE_SECONDS", 120)) * HARNESSES[name][1]
    command = [sys.executable, "-m", "tests.torture", name, "--seconds", str(seconds)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Iterables are read to their end. `test_disk_cache` tests those that are too large for memory."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from maxup.lab.data import user_data, user_iterable
from maxup.lab.data.user_data import from_user
from tests.lab.data.test_user_data import ROOT
from tests.waiting import PATIENCE, until_said


def test_sigterm_ends_the_reading_and_leaves_nothing(tmp_path):
    code = (
        "from itertools import repeat\nfrom maxup.lab.data import user_data, user_iterable\nuser_data.MEMORY = 0\n"
        "user_iterable.BLOCK, user_iterable.PAUSE = 99, 0\nuser_data.from_user(repeat(([0.5], 0)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, **options)
    until_said(process, "your repeat has more than 1,000 examples; still reading")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("memory", [2**20, 100])
def test_an_iterable_may_reuse_its_buffer(memory, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", memory)
    monkeypatch.setattr(user_iterable, "BLOCK", 300)

    def examples():
        buffer = np.zeros((1, 2, 2), np.float32)
        for i in range(20):
            buffer[:] = i
            yield buffer, i % 2

    train, _ = from_user(examples(), workers=0)
    found = train.x if memory > 100 else torch.stack([train.read(row) for row in range(20)])
    assert found[:, 0, 0, 0].tolist() == list(range(20))

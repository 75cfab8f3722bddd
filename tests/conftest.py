"""Set before torch loads: some CPUs announce bf16 instructions beyond what they run."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(1)  # the tests run in two processes


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)

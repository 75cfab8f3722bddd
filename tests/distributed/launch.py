"""Start the command in several processes on the CPU."""

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load_file

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
RECIPE = """
base: digits/mlp-gaussian-maxup
data: {train_size: 205}
model: {args: {hidden: [16]}}
objective: {name: maxup, m: 3}
epochs: 4
batch_size: 20
"""
HELD = """
import os, sys
from pathlib import Path
from maxup.cli.main import main
from maxup.lab.tasks.vision import Vision
from tests.waiting import at_call, until

def hold():
    Path("held-" + os.environ["RANK"]).write_text(str(os.getpid()))
    until(Path("go").exists)

at_call(Vision, "step", 12, hold)
sys.exit(main())
"""


def torchrun(
    tmp_path, folder, *, processes=2, options=(), recipe=RECIPE, program=("-m", "maxup"), how=("--standalone",), **env
):
    (tmp_path / "recipe.yaml").write_text(recipe)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), *how]
    command = [*launch, *program, "train", "recipe.yaml", "--out", str(folder), "--trackers", "none", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process):
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    return out


def weights(folder):
    return load_file(max((folder / "checkpoints").glob("step-*")) / "tensors.safetensors")


def free_port():
    """Return a free port for two agents. Systems do not give it to another connection before the agents use it."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("there is no free port")

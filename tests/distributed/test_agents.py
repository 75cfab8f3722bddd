"""Several agents of torchrun, as on several machines: the loopback interface connects two of them."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train
from tests.distributed.launch import HELD, RECIPE, ROOT, finish, free_port, torchrun, weights
from tests.waiting import PATIENCE, until

# What SLURM has on its machines. This srun starts both tasks here, and this torchrun stops in the middle of the run.
TOOLS = {
    "scontrol": '[ "$*" = "show hostnames fake[1-2]" ] && printf "127.0.0.1\\n127.0.0.1\\n"',
    "srun": '"$@" & first=$!; "$@" & wait $! && wait $first',
    "torchrun": f'all="$*"; exec {sys.executable} -m torch.distributed.run --local-addr 127.0.0.1 '
    "${all/-m maxup/held.py}",
}


@pytest.mark.slow
def test_two_agents_restart_after_a_killed_worker_and_end_bit_identical(tmp_path, whole):
    """As started by examples/slurm.sh, with two agents of one process each; `whole` is one agent with two processes."""
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "bin").mkdir()
    for name, text in TOOLS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "fake[1-2]", "PORT": str(free_port())}
    env = {**os.environ, **slurm, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", ROOT / "examples" / "slurm.sh", "recipe.yaml", "--out", "run", "--trackers", "none"]
    process = subprocess.Popen(
        [*command, "--save_every", "0"],
        cwd=tmp_path,
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    held = [tmp_path / f"held-{rank}" for rank in range(2)]
    until(lambda: all(file.exists() and file.read_text() for file in held), process)  # in the twelfth step of forty
    os.kill(int(held[1].read_text()), signal.SIGKILL)
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    assert "resuming at step" in out
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(tensor, weights(tmp_path / "run")[name]), name


@pytest.mark.slow
def test_a_scheduler_that_signals_every_process_lets_the_run_save(tmp_path, whole):
    """As SLURM does before the time is over; torchrun passes the signal on, so that workers get it twice."""
    (tmp_path / "held.py").write_text(HELD)
    options, restarts = ["--save_every", "600"], ["--standalone", "--max-restarts", "3"]
    process = torchrun(tmp_path, tmp_path / "run", options=options, program=["held.py"], how=restarts)
    held = [tmp_path / f"held-{rank}" for rank in range(2)]
    until(lambda: all(file.exists() and file.read_text() for file in held), process)
    for worker in held:
        os.kill(int(worker.read_text()), signal.SIGTERM)
    process.terminate()
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0, out
    assert (tmp_path / "run" / "checkpoints" / "step-000012").exists(), out
    assert "resuming at step 12 of 40" in finish(torchrun(tmp_path, tmp_path / "run", options=options))
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(tensor, weights(tmp_path / "run")[name]), name


@pytest.mark.slow
def test_two_agents_certify_as_one_process_does(tmp_path):
    train(parse_recipe("smoke/digits-gaussian-maxup", ["--epochs", "1"]), tmp_path / "run", quiet=True)
    certify = ["certify", "run", "--n", "200", "--batch", "200", "--out"]
    how = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "7", "--local-addr",
           "127.0.0.1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]  # fmt: skip
    launch = [sys.executable, "-m", "torch.distributed.run", *how, "-m", "--", "maxup"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    agents = [subprocess.Popen([*launch, *certify, "two.tsv"], cwd=tmp_path, env=env) for _ in range(2)]
    assert [agent.wait(timeout=PATIENCE) for agent in agents] == [0, 0]
    alone = subprocess.run([sys.executable, "-m", "maxup", *certify, "one.tsv"], cwd=tmp_path, env=env)
    assert alone.returncode == 0
    one, two = (
        [line.split("\t")[:5] for line in (tmp_path / name).read_text().splitlines()[1:]]
        for name in ("one.tsv", "two.tsv")
    )
    assert one == two
    assert len(one) == 1 + 65

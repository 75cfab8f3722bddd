"""Several agents of torchrun, as on several machines: the loopback interface connects two of them."""

import os
import signal
import socket
import subprocess

import torch

from tests.distributed.launch import HELD, torchrun, weights
from tests.waiting import PATIENCE, until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_agents_restart_after_a_killed_worker_and_end_bit_identical(tmp_path, whole):
    """The first torchrun of docs/scaling.md, with two agents of one process each."""
    (tmp_path / "held.py").write_text(HELD)
    how = ["--nnodes", "2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "maxup",
           "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]  # fmt: skip
    agents = [
        torchrun(tmp_path, tmp_path / "run", processes=1, options=["--save_every", "0"], program=["held.py"], how=how,
                 TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        for _ in range(2)
    ]  # fmt: skip
    until(lambda: len(list(tmp_path.glob("held-*"))) == 2, agents[0])  # in the twelfth step of forty
    worker = subprocess.run(["pgrep", "-P", str(agents[1].pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(worker[0]), signal.SIGKILL)
    (tmp_path / "go").touch()
    outputs = [agent.communicate(timeout=PATIENCE)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    assert "resuming at step" in "".join(outputs)
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(tensor, weights(tmp_path / "run")[name]), name

"""Launchers that ask for something else than the whole model in every process get one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from maxup.errors import RunError
from maxup.lab.train import processes
from maxup.lab.train.processes import SPLIT_WEIGHTS, start_accelerator
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("variable", SPLIT_WEIGHTS)
def test_split_weights_are_refused_by_name(variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(RunError, match=f"^{SPLIT_WEIGHTS[variable]} splits the weights .* which works with FSDP2$"):
        start_accelerator("no", [], tmp_path)


@pytest.mark.parametrize(("restarts", "advice"), [("0", "check that all are started"), ("1", "TCP_STORE=1")])
def test_processes_that_cannot_connect(restarts, advice, monkeypatch, tmp_path):
    def fail(**settings):
        raise RuntimeError("Gloo connectFullMesh failed with timed out connecting")

    monkeypatch.setattr(processes, "Accelerator", fail)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match=f"cannot connect to each other .*{advice}"):
        start_accelerator("no", [], tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match=r"^Gloo"):
        start_accelerator("no", [], tmp_path)


def test_the_fsdp_file_of_the_examples_is_refused(tmp_path):
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        ROOT / "examples/launch/fsdp.yaml",
    ]
    command = [*launch, "--num_processes", "1", "-m", "maxup", "train", "digits/mlp-gaussian-maxup", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert "maxup train: FSDP splits the weights" in done.stderr
    assert not (tmp_path / "run").exists()

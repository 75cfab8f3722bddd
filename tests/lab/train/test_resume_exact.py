"""A run that is killed at any moment and resumed ends bit-identical to one that was never interrupted."""

import hashlib
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train
from tests.waiting import PATIENCE, maxup_after

ROOT = Path(__file__).parents[3]
RECIPE = """
base: digits/mlp-gaussian-maxup
data: {train_size: 200, validation: 0.1}
model: {name: conv, args: {width: 4, dropout: 0.3}}
augment: [{name: crop_flip, padding: 1}]
optim: {ema: 0.9, clip: 1.0, accumulate: 2}
epochs: 6
batch_size: 20
"""
AT_STEP = """
import os, signal, threading
from maxup.lab.tasks.vision import Vision
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train
from tests.waiting import at_call
send = lambda: os.kill(os.getpid(), signal.{name})
at_call(Vision, "step", {step}, {act})
"""


def start(tmp_path, folder, setup=""):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    command = maxup_after(setup, "train", recipe, "--out", folder, "--save_every", 0)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    return out


def fingerprint(folder):
    """The weights, averages and streams of the last checkpoint, and the metrics without times."""
    last = max((folder / "checkpoints").glob("step-*"))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds", None)
    return hashlib.sha256((last / "tensors.safetensors").read_bytes()).hexdigest(), records


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in this process, never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "recipe.yaml").write_text(RECIPE)
    train(parse_recipe(str(folder / "recipe.yaml"), []), folder / "run", save_every=0, quiet=True)
    return fingerprint(folder / "run")


def killed_until_done(tmp_path, whole, kills, seed):
    """Kill a run `kills` times at random moments within random steps, then let it finish."""
    rng = random.Random(seed)
    for _ in range(kills):
        step = rng.randint(1, 16)  # of 54; ten steps later at the latest
        later = f"threading.Timer({rng.uniform(0, 0.1)}, send).start()"
        setup = AT_STEP.format(name="SIGKILL", step=step, act=f"lambda: {later}")
        process = start(tmp_path, tmp_path / "run", setup + f'at_call(Vision, "step", {step + 10}, send)\n')
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL, out
    finish(start(tmp_path, tmp_path / "run"))
    assert fingerprint(tmp_path / "run") == whole


def test_killed_runs_end_bit_identical(tmp_path, whole):
    killed_until_done(tmp_path, whole, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_killed_runs_end_bit_identical_every_time(tmp_path, whole, seed):
    killed_until_done(tmp_path, whole, kills=2, seed=seed)


@pytest.mark.slow
def test_interrupted_politely_it_saves_and_says_how_to_resume(tmp_path, whole):
    process = start(tmp_path, tmp_path / "run", AT_STEP.format(name="SIGINT", step=12, act="send"))
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out
    assert "the same command resumes" in out
    assert "Traceback" not in out
    finish(start(tmp_path, tmp_path / "run"))
    assert fingerprint(tmp_path / "run") == whole

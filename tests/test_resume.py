"""A run killed at any moment and begun again ends bit-identical to one never interrupted."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPE = """
base: digits/mlp-gaussian-maxup
data: {train_size: 200, validation: 0.1}
model: {name: conv, args: {width: 4, dropout: 0.3}}
augment: [{name: crop_flip, padding: 1}]
optim: {ema: 0.9, clip: 1.0, accumulate: 2}
epochs: 6
batch_size: 20
"""


def start(tmp_path, folder):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "maxup", "train", str(recipe), "--out", str(folder), "--save_every", "0"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate(timeout=120)
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
    tmp_path = tmp_path_factory.mktemp("whole")
    begun = time.monotonic()
    finish(start(tmp_path, tmp_path / "run"))
    return fingerprint(tmp_path / "run"), time.monotonic() - begun


def killed_until_done(tmp_path, whole, kills, seed):
    """Kill a run `kills` times at random moments, then let it finish."""
    expected, seconds = whole
    rng = random.Random(seed)
    folder, interrupted = tmp_path / "run", 0
    for _ in range(kills):
        process = start(tmp_path, folder)
        try:
            process.wait(timeout=rng.uniform(0.3, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            interrupted += 1
        process.communicate()
    finish(start(tmp_path, folder))
    assert fingerprint(folder) == expected
    return interrupted


def test_killed_runs_end_bit_identical(tmp_path, whole):
    assert killed_until_done(tmp_path, whole, kills=2, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_killed_runs_end_bit_identical_every_time(tmp_path, whole, seed):
    killed_until_done(tmp_path, whole, kills=2, seed=seed)


def test_interrupted_politely_it_saves_and_says_how_to_go_on(tmp_path, whole):
    process = start(tmp_path, tmp_path / "run")
    while not list((tmp_path / "run" / "checkpoints").glob("step-*")):
        time.sleep(0.05)
        assert process.poll() is None, process.communicate()[0]
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "the same command goes on from there" in out
    assert "Traceback" not in out
    finish(start(tmp_path, tmp_path / "run"))
    assert fingerprint(tmp_path / "run") == whole[0]

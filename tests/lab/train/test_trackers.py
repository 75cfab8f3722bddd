"""What trackers contain after a run, resumed or not. Trackers of other packages are tested if they are installed."""

import json
import shutil

import pytest
from accelerate.utils import LoggerType

from maxup.cli.main import main
from maxup.errors import RunError
from maxup.lab.train import trackers
from tests.lab.train.test_loop import train


def train_twice(folder, tracker):
    """Train, lose the last checkpoint, and resume. Returns the records of metrics.jsonl."""
    train(folder, trackers=[tracker])
    shutil.rmtree(folder / "checkpoints" / "step-000012")
    train(folder, trackers=[tracker])
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_holds_every_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_twice(tmp_path, "tensorboard")
    train(tmp_path, trackers=["tensorboard"])  # a finished run: the events are written again
    events = EventAccumulator(str(next(tmp_path.rglob("events.out.tfevents.*")).parent))
    events.Reload()
    steps = [e.step for e in events.Scalars("test_accuracy")]
    assert steps == sorted(set(steps)) == [4, 8, 12]


@pytest.mark.filterwarnings("ignore")  # of its own dependencies
def test_mlflow_holds_every_step_once_in_a_run_that_resumed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    records = train_twice(tmp_path / "a" / "run", "mlflow")
    client = mlflow.tracking.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'maxup'")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert [r.info.run_name for r in runs] == ["a-run", "a-run"]
    for run in runs:
        found = client.get_metric_history(run.info.run_id, "test_accuracy")
        assert [(m.step, m.value) for m in found] == [(r["step"], r["test_accuracy"]) for r in records if "epoch" in r]


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_holds_every_step_once_in_a_run_that_resumed(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    records = train_twice(tmp_path / "run", "wandb")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        assert wandb_steps(file.read_bytes()) == [r["step"] for r in records if "epoch" in r]


def wandb_steps(content):
    """Steps with a test accuracy in a .wandb file: 7 bytes, then blocks of 32 KiB of (checksum, size, kind, bytes)."""
    from wandb.proto.wandb_internal_pb2 import Record

    steps, at, whole = [], 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block is empty
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            history = Record.FromString(whole).history
            if any("test_accuracy" in (item.key, *item.nested_key) for item in history.item):
                steps.append(history.step.num)
            whole = b""
    return steps


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("wandbb", "tracker 'wandbb' is unknown; did you mean 'wandb'?"),
        ("x", "tracker 'x' is unknown; known: aim, clearml, comet_ml, "),
        ("", "tracker '' is unknown; known: "),
        ("all", "tracker 'all' is unknown; "),
        ("tensorboard,mlflow", "tracker 'mlflow' needs a package that is not installed; pip install '.[track]'"),
        ("comet_ml", "tracker 'comet_ml' needs a package that is not installed; pip install comet-ml"),
    ],
)
def test_trackers_that_are_not_there_get_a_message(tmp_path, monkeypatch, capsys, names, message):
    monkeypatch.setattr(trackers, "get_available_trackers", lambda: [LoggerType.TENSORBOARD])
    assert main(["train", "digits/mlp-gaussian", "--out", str(tmp_path / "run"), "--trackers", names]) == 1
    assert capsys.readouterr().err.startswith(f"maxup train: {message}")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_gets_a_message(tmp_path, monkeypatch):
    from accelerate.tracking import TensorBoardTracker

    def fail(self, *args, **kwargs):
        raise OSError("no route to host")

    for method in ("start", "log"):
        with monkeypatch.context() as patch:
            patch.setattr(TensorBoardTracker, method, fail)
            with pytest.raises(RunError, match=r"a tracker failed \(OSError: no route to host\); fix that"):
                train(tmp_path / method, trackers=["tensorboard"])
    train(tmp_path / "start", {"epochs": 1})


def test_a_full_disk_is_told_before_anybody_writes_in_a_thread(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trackers, "write", full)
    with pytest.raises(RunError, match=r"could not write .*maxup: No space left on device; the checkpoints are safe"):
        train(tmp_path, trackers=["tensorboard"])
    assert not (tmp_path / "maxup").exists()

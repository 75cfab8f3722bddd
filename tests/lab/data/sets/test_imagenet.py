"""The real folders: ten classes of ImageNet with 200 training and 50 validation images each."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml

from maxup.lab.data import load_data
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks.vision import Vision
from maxup.lab.train.loop import train
from tests.lab.data.fake import cut_short, real, write_folders
from tests.waiting import PATIENCE, until

RECIPE = {
    "data": {"name": "imagenette", "size": 32, "workers": 2},
    "model": {"name": "conv", "args": {"width": 8}},
    "augment": [{"name": "crop_flip", "padding": 0}],
    "perturb": [{"name": "cutmix"}],
    "objective": {"name": "maxup", "m": 2, "warmup": 0},
    "optim": {"lr": 0.05},
    "epochs": 2,
    "batch_size": 8,
}


def recipe(root, **changes):
    return recipe_from(RECIPE | {"data": RECIPE["data"] | {"root": str(root)} | changes})


@pytest.fixture(scope="module")
def few(data_root, tmp_path_factory):
    """Six training and three test images per class, one file of each split truncated."""
    real("imagenette", data_root)
    source, copy = data_root / "imagenette-subset", tmp_path_factory.mktemp("few")
    for part, n in (("train", 6), ("val", 3)):
        for folder in sorted((source / part).iterdir()):
            (copy / part / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[:n]:
                shutil.copy(file, copy / part / folder.name)
        cut_short(min((copy / part).rglob("*.JPEG")))
    return copy


def test_the_real_subset(data_root):
    train, test = real("imagenette", data_root)
    assert (len(train), len(test), len(train.classes)) == (2000, 500, 10)
    assert train.y.bincount().tolist() == [200] * 10
    assert test.y.bincount().tolist() == [50] * 10
    assert train.classes[0] == "n01440764"  # tench


def test_imagenet_is_found_in_its_folder(tmp_path):
    write_folders(tmp_path / "imagenet")
    assert [len(part) for part in load_data("imagenet", tmp_path)] == [12, 6]


def test_splits_of_folders(few):
    task = Vision(recipe(few, train_size=40, validation=0.25), torch.device("cpu"))
    assert [len(part) for part in (task.train, task.validation, task.test)] == [30, 10, 30]
    _, x, _ = next(iter(task.evaluation["validation"]))
    assert x.shape == (8, 3, 32, 32)


def test_a_run_counts_unreadable_images_and_resumes_exactly(few, tmp_path, capsys):
    result = train(recipe(few), tmp_path / "run")
    assert "skipped 2 images that cannot be read, such as" in capsys.readouterr().out
    assert result["last"]["skipped_images"] == 2
    assert 0 <= result["last"]["test_accuracy"] <= result["last"]["test_top5_accuracy"] <= 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["last"]["skipped_images"] == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped_images"] for line in lines if "test_accuracy" in line] == [2, 2]
    # A whole number of correct predictions among the 29 readable images:
    assert (29 * result["last"]["test_accuracy"]) == pytest.approx(round(29 * result["last"]["test_accuracy"]))

    class StoppedError(Exception):
        pass

    def stop_in_the_middle(step, calls=[0]):  # noqa: B006
        def stopping(task, model, batch):
            calls[0] += 1
            if calls[0] == 10:  # of 14: in the second epoch
                raise StoppedError
            return step(task, model, batch)

        return stopping

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vision, "step", stop_in_the_middle(Vision.step))
        with pytest.raises(StoppedError):
            train(recipe(few), tmp_path / "stopped", save_every=0, quiet=True)
    again = train(recipe(few), tmp_path / "stopped", quiet=True)
    assert again["last"] == result["last"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_saves_and_ends_all_of_them(tmp_path, number):
    write_folders(tmp_path / "imagenette")
    long = RECIPE | {"data": RECIPE["data"] | {"root": str(tmp_path), "size": 8}, "epochs": 10_000, "batch_size": 4}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(long))
    command = [sys.executable, "-m", "maxup", "train", "long.yaml", "--out", "run", "--trackers", "none"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    while "epoch 1/" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, number)  # like Ctrl-C in a terminal: the workers get it too
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out
    assert re.search("stopped at step .* the same command resumes", out), out
    until(lambda: subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout == b"")

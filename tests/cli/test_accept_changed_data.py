"""Image folders that changed since training started: verbs refuse them without --accept_changed_data."""

import json
import shutil

import pytest

import maxup
from maxup.cli.main import main
from tests.lab.data.fake import write_folders
from tests.lab.storage.test_checkpoint_hostile import forge

RECIPE = """
data: {name: imagenette, root: data, size: 8, workers: 0}
model: {name: conv, args: {width: 4}}
perturb: [{name: gaussian, sigma: 0.1}]
objective: {name: maxup, m: 2, warmup: 0}
epochs: 2
batch_size: 4
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_folders(folder / "data")
    (folder / "mine.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "mine.yaml", "--out", "run", "--trackers", "none"]) == 0
    return folder


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swap(root):
    """Two files of one class for two of another, so that nothing changes but what they show."""
    for part in ("train", "val"):
        one, other = root / part / "cat" / "0.jpeg", root / part / "dog" / "0.jpeg"
        one.rename(root / "aside")
        other.rename(one)
        (root / "aside").rename(other)


def rename(root):
    for part in ("train", "val"):
        (root / part / "dog").rename(root / part / "owl")


def remove(root):
    (root / "val" / "emu" / "1.jpeg").unlink()


TRAIN = ["train", "mine.yaml", "--out", "run", "--trackers", "none"]
VERBS = {
    "train": TRAIN, "eval": ["eval", "run"], "export": ["export", "run", "model"],
    "show": ["show", "run", "--images", "1"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", [swap, rename, remove])
def test_changed_images_are_rejected_or_accepted(place, capsys, change, verb):
    change(place / "data")
    capsys.readouterr()
    assert main(VERBS[verb]) == 1
    printed = capsys.readouterr().err
    assert printed == (
        f"maxup {verb}: the classes, names or sizes of the images in data are not those that run was trained with; "
        "restore them, or pass --accept_changed_data to train, eval, export or show\n"
    )
    assert main([*VERBS[verb], "--accept_changed_data"]) == 0
    if (verb, change) == ("export", rename):
        assert maxup.load(place / "model").config["classes"] == ["cat", "emu", "owl"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_images_elsewhere_are_the_same(place, verb):
    (place / "data").rename(place / "moved")
    assert main([*VERBS[verb], "--data.root", "moved/"]) == 0


def test_a_finished_run_keeps_its_record_if_the_images_moved(place):
    """The record may have results that `maxup certify` added."""
    before = (place / "run" / "run.json").read_bytes()
    (place / "data").rename(place / "moved")
    assert main([*TRAIN, "--data.root", "moved", "--data.workers", "1"]) == 0
    assert (place / "run" / "run.json").read_bytes() == before


def test_an_interrupted_run_resumes_with_the_same_images_elsewhere(place, capsys):
    before = json.loads((place / "run" / "run.json").read_text())["last"]
    for step in (place / "run" / "checkpoints").glob("step-*"):
        if step.name != "step-000003":  # the end of the first epoch
            shutil.rmtree(step)
    (place / "run" / "run.json").unlink()
    (place / "data").rename(place / "moved")
    assert main([*TRAIN, "--data.root", "moved"]) == 0
    assert "resuming at step 3 of 6" in capsys.readouterr().out
    assert json.loads((place / "run" / "run.json").read_text())["last"] == before
    assert main(["eval", "run"]) == 0


def test_other_images_elsewhere_are_rejected(place, capsys):
    write_folders(place / "moved", train=5)
    assert main([*TRAIN, "--data.root", "moved"]) == 1
    assert "the images in moved are not those that run was trained with" in capsys.readouterr().err


def test_a_run_that_resumes_with_changed_images_records_them(place, capsys):
    for step in (place / "run" / "checkpoints").glob("step-*"):
        if step.name != "step-000003":  # the end of the first epoch
            shutil.rmtree(step)
    (place / "run" / "run.json").unlink()
    rename(place / "data")
    assert main(TRAIN) == 1
    assert main([*TRAIN, "--accept_changed_data"]) == 0
    assert main(["eval", "run"]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_old_runs_do_not_say_and_are_used(place, verb):
    for step in (place / "run" / "checkpoints").glob("step-*"):
        state = json.loads((step / "state.json").read_text())
        task = next(value for key, value in state["dict"] if key == "task")
        task["dict"] = [pair for pair in task["dict"] if pair[0] != "data"]
        (step / "state.json").write_text(json.dumps(state))
        forge(step)
    rename(place / "data")
    assert main(VERBS[verb]) == 0

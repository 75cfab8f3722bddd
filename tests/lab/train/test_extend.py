"""A run that is extended ends as if it had been that long from the start; a restarted run loses nothing."""

import json
import re
import shutil

import pytest
import torch

from maxup.errors import CheckpointError, RunError
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.storage.locks import locked
from maxup.lab.train import loop
from maxup.lab.train.extend import set_aside
from tests.lab.train.test_loop import RECIPE, train
from tests.lab.train.test_resume_exact import fingerprint

CONSTANT = {"optim": {"schedule": "constant", "ema": 0.9}}
STEPS = {"optim": {"schedule": "steps", "milestones": [0.5], "warmup": 0.25}}
TRIANGLE = {"optim": {"schedule": "triangle"}}
AHEAD = {"optim": {"schedule": "constant", "lookahead": 2}}
WARM = {"objective": {"name": "maxup", "m": 2, "warmup": 5}}
LATE = {"objective": {"name": "maxup", "m": 2, "warmup": 0, "start": 0.5}}
BOTH = {"objective": {"name": "maxup", "m": 2, "warmup": 5, "start": 0.1}}


def longer(milestones, warmup):
    return {"optim": {"schedule": "steps", "milestones": milestones, "warmup": warmup}}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"epochs": 2, **CONSTANT}, {"epochs": 4, **CONSTANT}),
        ({"epochs": 2, **STEPS}, {"epochs": 4, **longer([0.25], 0.125)}),
        ({"epochs": 2, **CONSTANT, **LATE},
         {"epochs": 4, **CONSTANT, "objective": {**LATE["objective"], "start": 0.25}}),
        ({"epochs": 2, **STEPS}, {"epochs": 4, **longer([0.25, 0.75], 0.125)}),  # a new milestone in the new part
        ({"epochs": 2, **CONSTANT, "optim": {"schedule": "constant", "name": "asgd", "average_from": 0.5}},
         {"epochs": 4, "optim": {"schedule": "constant", "name": "asgd", "average_from": 0.25}}),
    ],
)  # fmt: skip
def test_an_extended_run_equals_one_that_was_as_long_from_the_start(tmp_path, first, then):
    train(tmp_path / "run", first)
    result = train(tmp_path / "run", then, extend=True)
    whole = train(tmp_path / "whole", then)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    assert (result["last"], result["best"], result["recipe"]) == (whole["last"], whole["best"], whole["recipe"])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["epochs"] == 4
    before = fingerprint(tmp_path / "run")
    assert train(tmp_path / "run", then, extend=True)["last"] == result["last"]  # again: finished
    assert train(tmp_path / "run", then)["last"] == result["last"]
    assert fingerprint(tmp_path / "run") == before


def test_a_text_run_is_extended(tmp_path, text):
    small = {**text, "optim": {"name": "asgd", "schedule": "constant", "lr": 5, "average_from": None}}
    train(tmp_path / "run", {**small, "epochs": 1})
    result = train(tmp_path / "run", {**small, "epochs": 2}, extend=True)
    whole = train(tmp_path / "whole", {**small, "epochs": 2})
    assert result["last"] == whole["last"]
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_text("the cat sat on the mat\nthe dog ran off\n" * 40)
    return {
        "task": "language", "data": {"name": "text", "root": str(folder)}, "batch_size": 4,
        "model": {"name": "awd_lstm", "args": {"embedding": 8, "hidden": 8, "layers": 1}},
        "perturb": [{"name": "embedding_dropout", "p": 0.5}], "language": {"bptt": 10, "test_columns": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({}, {"epochs": 4}, "cannot be extended: a cosine schedule depends on the number of epochs"),
        (TRIANGLE, {**TRIANGLE, "epochs": 4}, "cannot be extended: a triangle schedule depends on the number of"),
        (AHEAD, {**AHEAD, "epochs": 4}, "cannot be extended: the decay of optim.lookahead depends on the number of"),
        (CONSTANT, {**CONSTANT, "epochs": 1}, "has 2 epochs; to extend it, give more than that with --epochs"),
        (CONSTANT, {**CONSTANT, "epochs": 4, "batch_size": 10}, "only the number of epochs, but batch_size differ"),
        (STEPS, {**STEPS, "epochs": 4}, "stay the same; add --optim.warmup 0.125 --optim.milestones [0.25]"),
        ({**CONSTANT, **WARM}, {**CONSTANT, **WARM, "epochs": 40}, "stay the same; add --objective.warmup 1"),
        ({**CONSTANT, **LATE}, {**CONSTANT, **LATE, "epochs": 4}, "stay the same; add --objective.start 0.25"),
        ({**CONSTANT, "epochs": 10, **BOTH}, {**CONSTANT, "epochs": 40, **BOTH},
         "stay the same; add --objective.start 0.05 --objective.warmup 0"),
        ({"optim": {"schedule": "constant", "name": "asgd", "average_from": 0.5}},
         {"optim": {"schedule": "constant", "name": "asgd", "average_from": 0.5}, "epochs": 4},
         "stay the same; add --optim.average_from 0.25"),
    ],
)  # fmt: skip
def test_a_run_whose_past_would_change_is_not_extended(tmp_path, first, then, message):
    train(tmp_path, {"epochs": 2, **first})
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        train(tmp_path, then, extend=True)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("then", "extend", "message"),
    [
        ({**CONSTANT, "epochs": 2}, False, r"another recipe \(different: epochs\); choose another folder"),
        ({**CONSTANT, "epochs": 3}, True, "has 4 epochs; to extend it, give more than that"),
    ],
)
def test_an_extended_run_keeps_all_its_steps(tmp_path, then, extend, message):
    """An older checkpoint that fits the shorter recipe is not used instead."""
    run = tmp_path / "run"
    train(run, {**CONSTANT, "epochs": 2})
    train(run, {**CONSTANT, "epochs": 4}, extend=True)
    shutil.copytree(run, tmp_path / "before")
    with pytest.raises(RunError, match=message):
        train(run, then, extend=extend)
    assert fingerprint(run) == fingerprint(tmp_path / "before")
    for name in ("run.json", "metrics.jsonl"):
        assert (run / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


def test_a_schedule_that_cannot_be_extended_is_an_error_with_any_checkpoint(tmp_path):
    steps = {"optim": {"schedule": "steps", "milestones": [0.5]}}
    train(tmp_path, {**steps, "epochs": 2}, save_every=0.0)  # also checkpoints before the milestone
    with pytest.raises(RunError, match=r"add --optim\.milestones \[0\.25\]"):
        train(tmp_path, {**steps, "epochs": 4}, extend=True)


def test_without_the_option_the_message_names_it(tmp_path):
    train(tmp_path / "constant", {**CONSTANT, "epochs": 1})
    with pytest.raises(RunError, match="continue it with --extend, choose another folder with --out, or start over"):
        train(tmp_path / "constant", {**CONSTANT, "epochs": 2})
    train(tmp_path / "cosine", {"epochs": 1})
    with pytest.raises(RunError, match=r"different: epochs\); choose another folder"):
        train(tmp_path / "cosine", {"epochs": 2})


def test_a_restarted_run_starts_over_and_keeps_the_old_one(tmp_path, capsys):
    run = tmp_path / "run"
    train(run, {"epochs": 2})
    old = fingerprint(run)
    for number in (1, 2):
        result = loop.train(recipe_from(RECIPE | {"epochs": 1}), run, restart=True)
        assert f"the earlier run is now in {run}-old-{number}\n" in capsys.readouterr().out
        assert result["last"]["epoch"] == 1
    assert fingerprint(tmp_path / "run-old-1") == old
    assert fingerprint(tmp_path / "run-old-2") == fingerprint(run)


def test_a_folder_without_a_run_is_not_renamed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("keep")
    train(tmp_path / "run", {"epochs": 1}, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "keep"


def test_a_worker_that_torchrun_starts_again_resumes(tmp_path, monkeypatch):
    train(tmp_path / "run", {"epochs": 1})
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(tmp_path / "run", {"epochs": 1}, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_run_in_use_and_the_current_folder_are_not_renamed(tmp_path, monkeypatch):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with locked(tmp_path / "run"), pytest.raises(CheckpointError, match="is in use by process"):
        set_aside(tmp_path / "run", print)
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(RunError, match="which is the current folder"):
        set_aside(tmp_path / "run", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_run_that_was_stopped_is_extended(tmp_path):
    """From its newest checkpoint, which need not be the last."""
    train(tmp_path / "run", {"epochs": 3, **CONSTANT}, save_every=0)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    step = checkpoint.load(newest)["step"]
    shutil.rmtree(newest)
    (tmp_path / "run" / "run.json").unlink()
    left = checkpoint.latest(tmp_path / "run" / "checkpoints", print)
    assert left is not None
    assert 0 < left[0] < step
    train(tmp_path / "run", {"epochs": 4, **CONSTANT}, extend=True)
    train(tmp_path / "whole", {"epochs": 4, **CONSTANT})
    states = [checkpoint.latest(tmp_path / name / "checkpoints", print)[1]["model"] for name in ("run", "whole")]
    for name, weight in states[0].items():
        torch.testing.assert_close(weight, states[1][name], rtol=0, atol=0)

"""Which checkpoint a run resumes from, and what it says of the others. test_resume_exact.py checks the result."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import torch

from maxup.errors import MaxUpError, RunError
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.train import loop
from tests.lab.data.fake import write_folders
from tests.lab.storage.test_checkpoint_hostile import mutate
from tests.lab.train.test_loop import RECIPE, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder)


def test_a_damaged_checkpoint_is_named_and_the_previous_one_taken(tmp_path, whole, capsys):
    shutil.copytree(whole[0], tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    (newest / "tensors.safetensors").write_bytes(b"short")
    result = loop.train(recipe_from(RECIPE), tmp_path / "run")
    out = capsys.readouterr().out
    assert newest.name in out
    assert result["last"] == whole[1]["last"]


def test_when_none_can_be_read_it_says_so(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"none of the checkpoints in .* can be used"):
        train(tmp_path / "run")


def test_another_recipe_in_the_same_folder_is_refused(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    with pytest.raises(RunError, match=r"another recipe \(different: objective\.m\)"):
        train(tmp_path / "run", {"objective": {"name": "maxup", "m": 3, "warmup": 0}})
    with pytest.raises(RunError, match=r"another recipe \(different: epochs\)"):
        train(tmp_path / "run", {"epochs": 5})


def rewrite(folder, change):
    """Change the recipe that every checkpoint of a run holds."""
    for path in sorted((folder / "checkpoints").glob("step-*")):
        step, state = int(path.name.removeprefix("step-")), checkpoint.load(path)
        change(state["recipe"])
        shutil.rmtree(path)
        checkpoint.save(path.parent, step, state)


def test_a_run_begun_before_a_setting_was_known_is_resumed(tmp_path, whole):
    """Today's default stands for it, also where the run is finished: its record is not written again."""
    shutil.copytree(whole[0], tmp_path / "run")

    def forget(recipe):
        del recipe["objective"]["masks"], recipe["optim"]["sam"]

    rewrite(tmp_path / "run", forget)
    record = json.loads((tmp_path / "run/run.json").read_text())
    forget(record["recipe"])
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    before = (tmp_path / "run/run.json").read_bytes()
    assert train(tmp_path / "run")["last"] == whole[1]["last"]
    assert (tmp_path / "run/run.json").read_bytes() == before
    (tmp_path / "run/run.json").unlink()
    shutil.rmtree(max((tmp_path / "run/checkpoints").glob("step-*")))
    assert train(tmp_path / "run")["last"] == whole[1]["last"]
    rewrite(tmp_path / "run", lambda recipe: recipe["objective"].update(m=3))
    with pytest.raises(RunError, match=r"another recipe \(different: objective\.m\)"):
        train(tmp_path / "run")


def test_a_checkpoint_of_another_recipe_is_named_and_an_older_one_of_this_taken(tmp_path, whole, capsys):
    train(tmp_path / "other", {"objective": {"name": "maxup", "m": 3, "warmup": 0}})
    shutil.copytree(whole[0], tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    shutil.copytree(tmp_path / "other" / "checkpoints" / newest.name, newest)
    result = loop.train(recipe_from(RECIPE), tmp_path / "run")
    assert f"{newest} is skipped, and step 8 is used: " in (out := capsys.readouterr().out)
    assert "another recipe (different: objective.m)" in out
    assert result["last"] == whole[1]["last"]


def test_the_number_of_workers_may_change(tmp_path):
    """It changes no image. A run that ran out of memory can resume with fewer."""
    write_folders(tmp_path / "imagenette2-160")
    data = {"name": "imagenette", "root": str(tmp_path), "size": 32, "workers": 0}
    said = {"data": data, "model": {"name": "resnet20"}, "batch_size": 4}
    whole = train(tmp_path / "run", said)
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").glob("step-*")))
    (tmp_path / "run" / "run.json").unlink()
    assert train(tmp_path / "run", said | {"data": data | {"workers": 1}})["last"] == whole["last"]


def twelve_classes():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 12
    return torch.randint(256, (240, 1, 4, 4), generator=g, dtype=torch.uint8), y


def test_a_run_with_top_5_accuracy_resumes(tmp_path):
    """More than ten classes have a metric more, which checkpoints hold too."""
    options = {"data_from": twelve_classes, "save_every": 0}
    result = train(tmp_path / "whole", **options)
    assert 0 < result["last"]["test_accuracy"] < result["last"]["test_top5_accuracy"] < 1
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) == result["steps"]:
            shutil.rmtree(path)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(tmp_path / "run", **options)
    assert (again["last"], again["best"]) == (result["last"], result["best"])
    old, new = (
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text.splitlines()]
        for text in (before, (tmp_path / "run" / "metrics.jsonl").read_bytes())
    )
    assert old == new
    assert again["seconds"] != result["seconds"]  # it trained


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("model", {}, "Missing key"),
        ("model", {"0.weight": torch.zeros(2)}, "size mismatch|Missing key"),
        ("ema", {"0.weight": torch.zeros(2)}, "Missing key"),
        ("optimizer", {}, "'state' is missing|'param_groups' is missing"),
        ("loader", {"epoch": 0, "position": 1000}, "position 1000 is"),
        ("step", "8", "checkpoint field 'step' has type str"),
        ("best", None, "checkpoint field 'best' has type NoneType"),
        ("metrics_size", None, "int"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named_and_the_one_before_taken(tmp_path, whole, capsys, key, value, why):
    shutil.copytree(whole[0], tmp_path / "run")
    step, state = checkpoint.latest(tmp_path / "run" / "checkpoints", print)
    checkpoint.save(tmp_path / "run" / "checkpoints", step, state | {key: value})
    result = loop.train(recipe_from(RECIPE), tmp_path / "run")
    out, err = capsys.readouterr()
    assert err == ""
    [line] = [line for line in out.splitlines() if "cannot be loaded into this run: " in line]
    assert f"step-{step:06d}" in line
    assert re.search(why, line)
    assert result["last"] == whole[1]["last"]


def damage(run, chance):
    """Change, remove or replace a file or a folder of a run's checkpoints. Returns what was done."""
    newest = max((run / "checkpoints").glob("step-*"))
    file = chance.choice(sorted(p for p in (run / "checkpoints").rglob("*") if p.is_file()))
    other = chance.choice(sorted(p for p in run.rglob("*") if p.is_file()))
    beyond = run / "checkpoints" / "step-000099"
    kind = chance.randrange(18)
    if kind < 3:
        file.write_bytes(mutate(file.read_bytes(), chance))
    elif kind == 3:
        file.unlink()
    elif kind == 4:
        file.write_bytes(other.read_bytes())
    elif kind == 5:
        file.rename(file.with_name(chance.choice(["x", ".tmp-1-x", "state.json.old", "manifest.json"])))
    elif kind == 6:
        file.unlink()
        file.symlink_to(chance.choice([other, file, run, Path("/dev/zero")]))
    elif kind == 7:
        file.unlink()
        chance.choice([file.mkdir, lambda: os.mkfifo(file)])()
    else:
        [
            lambda: beyond.mkdir(),
            lambda: beyond.symlink_to(newest),
            lambda: beyond.write_text("x"),
            lambda: newest.rename(newest.with_name("step-000004")),
            lambda: shutil.copytree(newest, newest.with_name(f"{newest.name}.old")),
            lambda: shutil.rmtree(newest),
            lambda: shutil.rmtree(run / "checkpoints"),
            lambda: (run / "metrics.jsonl").write_text("{"),
            lambda: (run / "metrics.jsonl").unlink(),
            lambda: (run / "checkpoints" / "extra").write_bytes(bytes(9)),
        ][kind - 8]()
    return f"{kind} {file.relative_to(run)}"


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 240), marks=pytest.mark.slow)], ids=["40", "200"])
def test_a_damaged_folder_ends_in_the_same_run_or_in_one_message(tmp_path, whole, seeds):
    """Never in another run, and never in another kind of error."""
    refused = 0
    for seed in seeds:
        run = Path(shutil.copytree(whole[0], tmp_path / "run"))
        (run / "run.json").unlink()
        shutil.rmtree(max((run / "checkpoints").glob("step-*")))  # so that there is something left to train
        what = damage(run, random.Random(seed))
        message = ""
        try:
            assert train(run)["last"] == whole[1]["last"], (seed, what)
        except (MaxUpError, ValueError) as error:
            message = str(error)
        assert "\n" not in message, (seed, what)
        refused += message != ""
        shutil.rmtree(run)
    assert 0 < refused < len(seeds)

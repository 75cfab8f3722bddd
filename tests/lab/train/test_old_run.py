"""A run folder of version 0.1 is still resumed, opened, evaluated and exported.

run-0.1 was written by that version: 9 steps, of which the checkpoints of step 6 (the best) and 9 are kept.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.errors import RunError
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.train.loop import train
from maxup.lab.train.runs import evaluate, open_run

RECIPE = {  # in today's form
    "data": {"name": "digits", "train_size": 60},
    "model": {"name": "mlp", "args": {"hidden": [4]}, "normalize": True},
    "perturb": [{"name": "gaussian", "sigma": 0.2}],
    "objective": {"name": "maxup", "m": 2, "warmup": 0, "score": "kl", "chunk_size": 2},
    "optim": {"ema": 0.9},
    "epochs": 3,
    "batch_size": 20,
}


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(Path(__file__).parent / "run-0.1", tmp_path / "run"))


def test_it_resumes_to_the_same_result(folder):
    record = json.loads((folder / "run.json").read_text())
    expected = checkpoint.load(folder / "checkpoints" / "step-000009")
    shutil.rmtree(folder / "checkpoints" / "step-000009")
    (folder / "run.json").unlink()
    result = train(recipe_from(RECIPE), folder, quiet=True)
    assert result["steps"] == 9
    for key in ("last", "best"):
        assert result[key] == pytest.approx(record[key], rel=1e-5)
    found = checkpoint.load(folder / "checkpoints" / "step-000009")
    assert list(found["ranks"][0]) == list(expected["ranks"][0])
    for part in ("model", "ema"):
        for name, tensor in expected[part].items():
            torch.testing.assert_close(found[part][name], tensor, msg=name)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "epoch" in line] == [1, 2, 3]


def test_a_finished_run_keeps_its_record(folder):
    before = (folder / "run.json").read_bytes()
    assert train(recipe_from(RECIPE), folder, quiet=True) == json.loads(before)
    assert (folder / "run.json").read_bytes() == before


def test_another_recipe_is_refused(folder):
    other = RECIPE | {"objective": RECIPE["objective"] | {"score": "loss"}}
    with pytest.raises(RunError, match=r"another recipe \(different: objective\.score\)"):
        train(recipe_from(other), folder, quiet=True)


@pytest.mark.parametrize(("which", "step"), [("last", 9), ("best", 6)])
def test_it_is_evaluated(folder, which, step):
    record = json.loads((folder / "run.json").read_text())[which]
    run = open_run(folder, which)
    assert (run.step, run.recipe.objective["score"], run.recipe.model.normalize) == (step, "kl", True)
    found = evaluate(run)["test"]
    assert found["accuracy"] == record["test_accuracy"]
    assert found["loss"] == pytest.approx(record["test_loss"], rel=1e-5)


def test_it_is_exported(folder, tmp_path):
    assert main(["export", str(folder), str(tmp_path / "model")]) == 0
    model, weights = maxup.load(tmp_path / "model"), checkpoint.load(folder / "checkpoints" / "step-000009")["ema"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])

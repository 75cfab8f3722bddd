"""A run opened again is what was trained."""

import shutil
from dataclasses import asdict

import pytest
import torch

from maxup.data import load_data
from maxup.data.images import split
from maxup.engine import checkpoint
from maxup.engine.runs import build_task, evaluate, open_run
from maxup.engine.stop import RunError
from maxup.recipes.load import RecipeError
from maxup.recipes.schema import Data, Recipe
from tests.cli.runs import make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, make(folder)


@pytest.mark.parametrize("which", ["last", "best"])
def test_it_equals_what_training_recorded(run, which):
    folder, record = run
    opened = open_run(folder, which)
    for name, found in evaluate(opened).items():
        for key in ("loss", "accuracy"):
            assert found[key] == record[which][f"{name}_{key}"]
    assert opened.recorded == record[which]


def test_the_weights_that_training_began_with_are_not_needed_again(run, tmp_path):
    torch.save(open_run(run[0]).model.state_dict(), tmp_path / "weights.pt")
    record = make(tmp_path / "run", "--model.weights", str(tmp_path / "weights.pt"), "--model.new_head", "true")
    (tmp_path / "weights.pt").unlink()
    assert open_run(tmp_path / "run").recorded == record["last"]


def test_it_equals_a_plain_evaluation_of_the_averaged_weights(run):
    opened = open_run(run[0])
    images, _ = load_data("digits")
    _, test = split(images, 200, 0)
    with torch.no_grad():
        output = opened.model(test.x.float() / 16)
    assert evaluate(opened)["test"]["accuracy"] == pytest.approx(float((output.argmax(1) == test.y).double().mean()))
    assert evaluate(opened)["test"]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(output, test.y)))


def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(run, tmp_path, capsys):
    copy = shutil.copytree(run[0], tmp_path / "run")
    older, newest = sorted((copy / "checkpoints").glob("step-*"))[-2:]
    with (newest / "tensors.safetensors").open("r+b") as file:
        file.truncate(100)
    step = int(older.name.removeprefix("step-"))
    assert open_run(copy).step == step
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{newest} is not a whole checkpoint: tensors.safetensors ")
    assert said.err.endswith(f"; step {step} is taken instead\n")
    assert open_run(run[0]).step > step
    assert capsys.readouterr().err == ""


def test_a_whole_checkpoint_of_something_else_gives_a_sentence(tmp_path):
    foreign = [
        {"lr": 0.1},
        [1, 2],
        {"recipe": {"epochz": 1}, "model": {}, "ema": None, "best": {}, "last": {}},
        {"recipe": asdict(Recipe()), "model": {}, "ema": None, "best": {}, "last": {}},
        {
            "recipe": asdict(Recipe()) | {"data": {"train_size": 9}},
            "model": {"a": 3},
            "ema": None,
            "best": {},
            "last": {},
        },
    ]
    for number, state in enumerate(foreign):
        checkpoint.save(tmp_path / str(number) / "checkpoints", 1, state)
        with pytest.raises((RunError, RecipeError)) as caught:
            open_run(tmp_path / str(number))
        assert "\n" not in str(caught.value)


def test_a_recipe_that_cannot_be_built_gets_a_sentence():
    with pytest.raises(RunError, match=r"^the recipe cannot be built: .*perturb is empty"):
        build_task(Recipe(perturb=[], data=Data(train_size=50)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has fp16")
def test_fp16_is_refused_in_training_without_a_gpu_and_not_where_a_run_is_only_evaluated(tmp_path, run):
    with pytest.raises(ValueError, match=r"^precision fp16 needs a CUDA device, and there is none; use bf16"):
        make(tmp_path / "new", "--precision", "fp16")
    step, state = checkpoint.latest(run[0] / "checkpoints", print)
    state["recipe"]["precision"] = "fp16"  # as a run of somebody with a GPU
    checkpoint.save(tmp_path / "checkpoints", step, state)
    assert evaluate(open_run(tmp_path)) == evaluate(open_run(run[0]))

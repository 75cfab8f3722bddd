"""A run opened again is what was trained."""

import shutil
from dataclasses import asdict

import pytest
import torch

from maxup.errors import RecipeError, RunError
from maxup.lab.data import load_data
from maxup.lab.data.images import split
from maxup.lab.models import create_model
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.recipes.schema import Data, Recipe
from maxup.lab.registry import MODELS
from maxup.lab.storage import checkpoint
from maxup.lab.train.loop import train
from maxup.lab.train.runs import build_task, evaluate, open_run
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
    assert opened.metrics == record[which]


def test_the_weights_that_training_began_with_are_not_needed_again(run, tmp_path):
    torch.save(open_run(run[0]).model.state_dict(), tmp_path / "weights.pt")
    record = make(tmp_path / "run", "--model.weights", str(tmp_path / "weights.pt"), "--model.new_head", "true")
    (tmp_path / "weights.pt").unlink()
    assert open_run(tmp_path / "run").metrics == record["last"]


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
    assert said.err.startswith(f"{newest} is not a valid checkpoint: tensors.safetensors ")
    assert said.err.endswith(f"; step {step} is used instead\n")
    assert open_run(run[0]).step > step
    assert capsys.readouterr().err == ""


def test_a_valid_checkpoint_of_something_else_gets_a_message(tmp_path):
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


def test_a_recipe_that_cannot_be_built_gets_a_message():
    with pytest.raises(RunError, match=r"^the recipe cannot be built: .*perturb is empty"):
        build_task(Recipe(perturb=[], data=Data(train_size=50)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has fp16")
def test_fp16_is_refused_in_training_without_a_gpu_and_not_where_a_run_is_only_evaluated(tmp_path, run):
    with pytest.raises(ValueError, match=r"^precision fp16 needs a GPU, but there is none; use bf16"):
        make(tmp_path / "new", "--precision", "fp16")
    step, state = checkpoint.latest(run[0] / "checkpoints", print)
    state["recipe"]["precision"] = "fp16"  # as a run of somebody with a GPU
    checkpoint.save(tmp_path / "checkpoints", step, state)
    assert evaluate(open_run(tmp_path)) == evaluate(open_run(run[0]))


def forge_recipe(folder, **model):
    """Change the recipe in a run's checkpoints, and their manifests to match."""
    for path in (folder / "checkpoints").glob("step-*"):
        state = checkpoint.load(path)
        state["recipe"]["model"] |= model
        checkpoint.save(folder / "checkpoints", int(path.name.removeprefix("step-")), state, keep=9)


@pytest.mark.parametrize("model", [{"args": {"width": 30}}, {"name": "mlp", "args": {"hidden": [300, 300]}}])
def test_weights_of_another_network_get_a_message(run, tmp_path, model):
    shutil.copytree(run[0], tmp_path / "run")
    forge_recipe(tmp_path / "run", **model)
    with pytest.raises(RunError, match=r"^the weights in .*run do not fit its recipe: [^\n]+$"):
        open_run(tmp_path / "run")


def test_a_forged_recipe_takes_no_memory(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    forge_recipe(tmp_path / "run", args={"width": 10_000})
    with pytest.raises(
        RunError, match=r"the recipe cannot be built: .* would have 9\.00 G parameters, more than 1\.00 G"
    ):
        open_run(tmp_path / "run")


def test_weights_of_another_language_model_get_a_message(tmp_path):
    words = ["--model.args", "{embedding: 4, hidden: 6, layers: 2}", "--epochs", "1", "--language.dynamic", "false"]
    train(parse_recipe("text/awd_lstm-embedding_dropout", [*words, "--batch_size", "200"]), tmp_path, quiet=True)
    open_run(tmp_path)
    forge_recipe(tmp_path, args={"embedding": 5, "hidden": 6, "layers": 2})
    with pytest.raises(RunError, match=r"do not fit its recipe: [^\n]*size mismatch for words\.weight"):
        open_run(tmp_path)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_network_has_the_same_shapes_on_the_meta_device(name):
    real = create_model(name, shape=(3, 32, 32), num_classes=10)
    with torch.device("meta"):
        twin = create_model(name, shape=(3, 32, 32), num_classes=10)
    shapes = [{k: v.shape for k, v in model.state_dict().items()} for model in (real, twin)]
    assert shapes[0] == shapes[1]
    assert all(tensor.is_meta for tensor in twin.state_dict().values())

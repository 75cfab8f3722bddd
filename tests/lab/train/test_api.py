"""`maxup.train` does what the command does, and returns what run.json holds."""

import json
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import maxup
from maxup.cli.main import main
from maxup.errors import DataError, RecipeError, RunError
from maxup.lab.train.api import _words
from tests.lab.train.test_resume_exact import fingerprint

RECIPE = "digits/mlp-gaussian-maxup"
SMALL = {"epochs": 1, "data.train_size": 100, "model.args": {"hidden": [8]}, "objective.m": 3, "optim.clip": None}
WORDS = ["--epochs", "1", "--data.train_size", "100", "--model.args", "{hidden: [8]}", "--objective.m", "3"]


def test_it_returns_what_the_record_holds_and_trains_as_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = maxup.train(RECIPE, SMALL | {"seed": 7}, quiet=True)
    assert capsys.readouterr().out == ""
    run = tmp_path / "runs" / RECIPE / "seed-7"
    assert result == json.loads((run / "run.json").read_text())
    assert main(["train", RECIPE, *WORDS, "--seed", "7", "--trackers", "none", "--out", "command"]) == 0
    assert fingerprint(run) == fingerprint(tmp_path / "command")
    assert maxup.train(RECIPE, [*WORDS, "--seed", "7"], tmp_path / "command", quiet=True)["last"] == result["last"]


def test_your_functions_and_your_recipe_file(tmp_path):
    def data():
        x = torch.arange(200 * 9, dtype=torch.uint8).view(200, 1, 3, 3)
        return x[:150], torch.arange(150) % 3, x[150:], torch.arange(50) % 3

    def net(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(9, num_classes))

    path = tmp_path / "mine.yaml"
    path.write_text(f"base: {RECIPE}\ndata: {{train_size: null}}\nmodel: {{args: {{}}}}\nepochs: 1\n")
    result = maxup.train(path, out=tmp_path / "run", model_from=net, data_from=data, quiet=True)
    assert result["task"]["data_from"].endswith("data")
    assert result["last"]["epoch"] == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optim.speed": 3}, "optim.speed"),
        ({"epoch": 3}, r"option 'epoch' is unknown; did you mean 'epochs'\?$"),
        ({"epochs": 0}, "epochs=0 is out of range"),
        ({"epochs": "many"}, "epochs"),
        ({"data.root": "/nowhere"}, "data.root: there is no folder /nowhere"),
        ({"data.root": Path("/nowhere")}, "data.root: there is no folder /nowhere"),
        ({"epochs": numpy.int64(0)}, "epochs=0 is out of range"),
        (["--epochs", numpy.int64(0)], "epochs=0 is out of range"),
        ({"model.args": {"hidden": object()}}, "model.args is .*, a dict; use text, a number, a path"),
        ({"optim.lr": torch.device("cpu")}, r"optim.lr is device\(type='cpu'\), a device; use text, a number, a path"),
    ],
)
def test_a_wrong_override_gives_one_sentence(tmp_path, overrides, message):
    with pytest.raises((RecipeError, DataError), match=message) as caught:
        maxup.train(RECIPE, overrides, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"^cannot create .*run: Not a directory; choose another folder with out=$"):
        maxup.train(RECIPE, SMALL, tmp_path / "file" / "run", quiet=True)


@pytest.mark.parametrize(
    ("overrides", "options", "named"),
    [
        ({"epochs": 2}, {}, ["extend=True", "out=", "restart=True"]),
        ({"objective.m": 2}, {"extend": True}, ["extend=True", "out=", "restart=True"]),
        ({"data.train_size": 90}, {}, ["out=", "restart=True"]),
    ],
)
def test_messages_name_arguments_where_those_of_the_command_name_options(tmp_path, overrides, options, named, capsys):
    """The arguments that a message names solve the problem."""
    out, before = tmp_path / "run--in-the-garden", SMALL | {"optim.schedule": "constant"}
    now = before | overrides
    maxup.train(RECIPE, before, out, quiet=True)
    with pytest.raises(RunError, match="run--in-the-garden") as caught:
        maxup.train(RECIPE, now, out, quiet=True, **options)
    assert [name for name in named if name not in str(caught.value)] == []
    assert " --" not in str(caught.value)
    assert main(["train", RECIPE, *_words(now), "--out", str(out), *(f"--{name}" for name in options)]) == 1
    said = capsys.readouterr().err.replace(",", " ").split()
    assert [name for name in named if f"--{name.partition('=')[0]}" not in said] == []
    if "epochs" in overrides:
        assert maxup.train(RECIPE, now, out, quiet=True, extend=True)["last"]["epoch"] == 2
    assert maxup.train(RECIPE, now, out, quiet=True, restart=True)["recipe"]["epochs"] == now["epochs"]


def test_numpy_numbers_and_paths_in_overrides_are_plain_values():
    given = {"optim.lr": numpy.float32(0.5), "model.args": {"hidden": [numpy.int64(8)]}, "data.root": Path("a b")}
    assert _words(given) == ["--optim.lr=0.5", '--model.args={"hidden": [8]}', "--data.root=a b"]
    assert _words({"model.args": {"weights": Path("w.pt"), "bias": numpy.bool_(True)}}) == [
        '--model.args={"weights": "w.pt", "bias": true}'
    ]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"overrides": None}, TypeError, "overrides=None: pass a dict such as"),
        ({"overrides": 5}, TypeError, "overrides=5: pass a dict such as"),
        ({"overrides": "--epochs 1"}, TypeError, "overrides='--epochs 1': pass a dict such as"),
        ({"data_from": 5}, TypeError, r"data_from=5: pass a function \(\), not its name or its result"),
        ({"model_from": "x"}, TypeError, r"model_from='x': pass a function \(shape, num_classes\)"),
        ({"out": ""}, RunError, "out is empty; name a folder for the run"),
    ],
)
def test_a_wrong_argument_gives_one_sentence(tmp_path, monkeypatch, arguments, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        maxup.train(RECIPE, **arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())

"""A user's data set and network, from the command line."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.errors import LoadError
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
MINE = """
import torch
from torch import nn

def data():
    g = torch.Generator().manual_seed(number)
    y = torch.randint(3, (300,), generator=g)
    x = torch.randint(60, (300, 1, 6, 6), generator=g, dtype=torch.uint8)
    x[torch.arange(300), 0, y] += 150          # the class is a bright row
    return x[:200], y[:200], x[200:], y[200:]

def net(shape, num_classes, width=16):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, num_classes))

def leave():
    raise SystemExit(3)

number = 3
"""


def write_recipe(folder, *options):
    """Write a recipe and code beside it, and return the words of the command that trains it."""
    (folder / "mine.py").write_text(MINE)
    (folder / "recipe.yaml").write_text(
        "base: digits/mlp-gaussian-maxup\ndata: {train_size: null}\nmodel: {args: {}}\n"
    )
    return ["train", "recipe.yaml", "--out", "run", "--trackers", "none", *options]


def test_user_data_and_network_train(tmp_path):
    user_code = ["--data_from", "mine:data", "--model_from", "mine:net", "--model.args.width", "24"]
    command = [sys.executable, "-m", "maxup", *write_recipe(tmp_path, "--epochs", "5", *user_code)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert result["last"]["test_accuracy"] > 0.8
    assert {k: v for k, v in result["task"].items() if k != "data"} == {
        "model_from": "mine:net", "data_from": "mine:data"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--model_from", "mine", "--model_from mine: 'mine' is not of the form MODULE:FUNCTION"),
        ("--model_from", "nowhere:net", "installed packages; run the command in the folder that has nowhere.py"),
        ("--model_from", "mine:nett", "mine: function 'nett' is unknown; did you mean 'net'?"),
        ("--data_from", "mine:number", "number is an int; name a function"),
        ("--data_from", "mine:leave", "your code raised SystemExit: 3"),
        ("--data_from", "mine:net", "your code"),
    ],
)
def test_a_mistake_gets_one_message(tmp_path, monkeypatch, capsys, option, value, message):
    monkeypatch.chdir(tmp_path)
    assert main(write_recipe(tmp_path, option, value)) == 1
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


TIRED = """
import torch
from torch import nn
import helper

class Tired(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.passes = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 0
    def forward(self, x):
        self.passes += 1
        return helper.give_up(self, x) if self.passes > 5 else self.plain(x)

def net(shape, num_classes):
    return Tired()
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return {}[3]", "your code raised KeyError: 3 (helper.py, line 3, in give_up)"),
        ("return torch.ones(2, 3) @ torch.ones(2, 3)", "your code raised RuntimeError: mat1 and mat2 shapes"),
        ("raise OSError('gone')", "your code raised OSError: gone (helper.py"),
    ],
)
def test_a_network_that_raises_after_its_first_passes_gets_one_message(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tired.py").write_text(TIRED)
    (tmp_path / "helper.py").write_text(f"import torch\ndef give_up(net, x):\n    {line}\n")
    options = ["--model_from", "tired:net", "--model.args", "{}", "--trackers", "none", "--out", "run"]
    assert main(["train", "digits/mlp-gaussian", *options]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"maxup train: {message}")
    assert len(err.splitlines()) == 1


def test_a_bug_of_ours_beside_user_code_keeps_its_traceback(tmp_path, monkeypatch):
    from maxup.lab.tasks.vision import Vision

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ours.py").write_text(MINE)
    monkeypatch.setattr(Vision, "lr_scale", lambda task, batch: torch.ones(2) @ torch.ones(3))
    options = ["--data_from", "ours:data", "--model_from", "ours:net", "--model.args", "{}", "--trackers", "none"]
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        main(["train", "digits/mlp-gaussian", "--data.train_size", "null", *options])


def test_a_run_on_user_data_is_not_a_result_of_the_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ours.py").write_text(MINE)
    short = ["--epochs", "1", "--data.train_size", "null", "--trackers", "none", "--model.args", "{}"]
    own = ["--data_from", "ours:data", "--model_from", "ours:net"]
    run = "runs/digits/mlp-gaussian/seed-0"
    assert main(["train", "digits/mlp-gaussian", *short, *own]) == 0
    accuracy = json.loads((tmp_path / run / "run.json").read_text())["last"]["test_accuracy"]
    capsys.readouterr()

    sys.modules.pop("ours")
    for words in (["eval", run], ["export", run, "mine"], ["show", run, "--m", "2"]):
        assert main(words) == 0  # signed: this user trained it in this folder
        sys.modules.pop("ours")
    capsys.readouterr()
    (tmp_path / run / "code.json").unlink()
    for words in (["eval", run], ["export", run, "shared"], ["show", run, "--m", "2"]):
        assert main(words) == 1
        named = "custom code, --model_from ours:net --data_from ours:data, without a signature of yours for this folder"
        assert named in capsys.readouterr().err
        assert "ours" not in sys.modules  # nothing that a run names is imported without consent
    assert main(["eval", run, *own]) == 0
    assert f"accuracy {100 * accuracy:.2f} %" in capsys.readouterr().out
    assert main(["eval", run, "--trust"]) == 0
    assert f"accuracy {100 * accuracy:.2f} %" in capsys.readouterr().out
    assert main(["eval", run, "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["test"]["accuracy"] == accuracy
    assert main(["show", run, "--m", "2", "--trust"]) == 0
    capsys.readouterr()
    assert main(["export", run, "trusted", "--trust"]) == 0
    assert 'maxup.load("trusted", model_from=ours.net)' in capsys.readouterr().out
    assert main(["export", run, "shared", *own]) == 0
    assert 'maxup.load("shared", model_from=ours.net)' in capsys.readouterr().out
    with pytest.raises(LoadError, match="a custom network built by ours:net; pass that function as model_from="):
        maxup.load("shared")
    assert maxup.load("shared", model_from=sys.modules["ours"].net).config["metrics"]["test_accuracy"] == accuracy
    sys.modules["ours"].number = 4
    for words in (["eval", run], ["train", "digits/mlp-gaussian", *short]):
        assert main([*words, *own]) == 1
        assert "was trained with other data than --data_from ours:data returns now" in capsys.readouterr().err
    assert main(["eval", run, *own, "--accept_changed_data"]) == 0
    sys.modules["ours"].number = 3
    assert main(["train", "digits/mlp-gaussian", *short, "--data_from", "ours:data"]) == 1
    assert "was trained with --model_from ours:net, but the option is missing here" in capsys.readouterr().err
    assert main(["ls", "digits"]) == 0
    mine, *recipes = [line for line in capsys.readouterr().out.splitlines() if "mlp-gaussian" in line]
    what = "--model_from ours:net, --data_from ours:data, data.train_size None, model.args {}, 1 of 60 epochs"
    assert mine.startswith(f"{run}  {what}  1  {100 * accuracy:.2f} % (n = 1)")
    assert not any("(n = 1)" in line for line in recipes)


def test_a_run_that_names_code_that_is_gone_gets_one_message(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ours.py").write_text(MINE)
    short = ["--epochs", "1", "--data.train_size", "null", "--trackers", "none", "--out", "run"]
    assert main(["train", "digits/mlp-gaussian", *short, "--data_from", "ours:data"]) == 0
    capsys.readouterr()
    monkeypatch.delitem(sys.modules, "ours")
    (tmp_path / "ours.py").unlink()
    assert main(["eval", "run", "--trust"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("maxup eval: --data_from ours:data: there is no module ours in this folder")
    assert err.count("\n") == 1


def test_json_is_alone_on_stdout_even_if_your_code_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loud.py").write_text(MINE.replace("def data():", "def data():\n    print('loading')"))
    short = ["--epochs", "1", "--data.train_size", "null", "--trackers", "none", "--out", "run"]
    own = ["--data_from", "loud:data"]
    assert main(["train", "digits/mlp-gaussian", *short, *own]) == 0
    capsys.readouterr()
    assert main(["eval", "run", *own, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["splits"]["test"]["count"] == 100
    assert err.startswith("loading\n")


NAMELESS = f"""
from functools import partial
{MINE}
class Data:
    def __call__(self):
        return data()

def make():
    return lambda: data()

an_object, nested, partly = Data(), make(), partial(partial(data))
"""


@pytest.mark.parametrize("name", ["an_object", "nested", "partly"])
def test_a_function_without_a_name_is_found_again_where_it_was(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nameless.py").write_text(NAMELESS)
    short = ["--epochs", "1", "--data.train_size", "null", "--trackers", "none", "--out", "run"]
    assert main(["train", "digits/mlp-gaussian", *short, "--data_from", f"nameless.py:{name}"]) == 0
    assert main(["eval", "run", "--trust"]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["task"]["data_from"] == f"nameless:{name}"


SCRIPT = f"""
from functools import partial
import maxup
{MINE}
class Data:
    def load(self):
        return data()
    __call__ = load

if __name__ == "__main__":
    options = {{"epochs": 1, "data.train_size": None}}
    maxup.train("digits/mlp-gaussian", options, "run", data_from=data, quiet=True)
    unnamed = {{"nested": lambda: data(), "partial": partial(data), "method": Data().load, "object": Data()}}
    for name, function in unnamed.items():
        maxup.train("digits/mlp-gaussian", options, name, data_from=function, quiet=True)
"""


def test_the_command_opens_runs_of_a_script(tmp_path, monkeypatch, capsys):
    """A function of the script is found in its file. What has no name is given again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True, timeout=PATIENCE)
    assert main(["eval", "run"]) == 0
    for name, trust in product(("nested", "partial", "method", "object"), ([], ["--trust"])):
        assert main(["eval", name, *trust]) == 1
        advice = "which has no name that can be imported; give it again as --data_from MODULE:FUNCTION\n"
        assert capsys.readouterr().err.endswith(advice)
    for name in ("nested", "partial", "method", "object"):
        assert main(["eval", name, "--data_from", "script:data"]) == 0

"""`maxup bench`: a tiny run of each kind, and one message for what cannot be measured."""

import json
import re
from pathlib import Path

import pytest
import torch

from maxup.cli.main import main

MINE = """
import torch
from torch import nn

def net(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], num_classes))

def data():
    torch.manual_seed(0)
    return torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8), torch.arange(40) % 4

def setup():
    torch.manual_seed(0)
    return {"model": nn.Linear(3, 2), "batch": (torch.rand(8, 3), torch.arange(8) % 2)}

def wrong_head(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

def raises(*args, **kwargs):
    raise KeyError("my own words")

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        raise KeyError("in forward")

def broken(shape, num_classes):
    return Broken()
"""
TINY = ["--rounds", "1", "--m", "2", "--train_steps", "1"]
RANDOM = ["--input", "1,4,4", "--num_classes", "4", "--batch_size", "4"]


@pytest.fixture(autouse=True)
def _mine(tmp_path, monkeypatch):
    (tmp_path / "my_bench.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def call(*words):
    try:
        return main(["bench", *words])
    except SystemExit as stop:
        return stop.code


def test_a_built_in_network_with_files(tmp_path, capsys):
    assert call("mlp", *RANDOM, *TINY, "--out", "out") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mlp, Cutout(2), batch 4, random data, ")
    for word in ("standard", "maxup", "average", "keep all graphs", "pgd7", "sam"):
        assert f"\n{word} " in printed
    assert printed.endswith("Written: bench.json, cost.png and gap.png in out\n")
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [(one["name"], one["m"]) for one in result["variants"]] == [
        ("standard", 1), ("maxup", 2), ("average", 2), ("keep_all_graphs", 2), ("pgd7", None), ("sam", None),
    ]  # fmt: skip
    assert (result["batch_size"], result["input"], result["rounds"], result["train_steps"]) == (4, [[1, 4, 4]], 1, 1)
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in ("cost.png", "gap.png"))


def test_a_profile(tmp_path, capsys):
    assert call("mlp", *RANDOM, *TINY, "--variants", "maxup", "--profile", "--out", "out") == 0
    printed = capsys.readouterr().out
    assert re.search(r"\n  maxup, m = 2: .*other kernels \d+ %.*, idle \d+ %\n", printed)
    assert re.search(r"\nDrawing and applying one copy takes \d+\.\d\d ms, \d+\.\d % of the standard step\.\n", printed)
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert all(one["profile"]["kernels"] for one in result["variants"])


def test_your_network_as_json(capsys):
    words = ["--model_from", "my_bench:net", *RANDOM, *TINY, "--variants", "sam", "maxup", "--precision", "bf16"]
    assert call(*words, "--perturb", "{name: gaussian, sigma: 0.2}", "--device", "cpu", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["network"], result["parameters"]) == ("my_bench:net", 4 * 16 + 4)
    assert (result["perturbation"], result["precision"]) == ("Gaussian(0.2)", "bf16")
    assert [one["name"] for one in result["variants"]] == ["standard", "maxup", "sam"]
    assert result["variants"][1]["gap_kept"] == 1.0


def test_your_network_and_data(capsys):
    words = ["--model_from", "my_bench:net", "--data_from", "my_bench:data", "--batch_size", "8", "--variants", "maxup"]
    assert call(*words, *TINY, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["data"], result["input"], result["batch_size"]) == ("my_bench:data", [[1, 4, 4]], 8)


def test_your_setup_is_not_trained(capsys):
    assert call("my_bench:setup", "--m", "2", "--rounds", "1", "--variants", "maxup", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["train_steps"], result["network"], result["input"]) == (0, "my_bench:setup", [[3]])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "give either a network, such as resnet20, or --model_from"),
        (["mlp", "--model_from", "my_bench:net"], 2, "give either a network, such as resnet20, or --model_from"),
        (["resnet2"], 1, "model 'resnet2' is unknown; did you mean 'resnet"),
        (["awd_lstm"], 1, "model 'awd_lstm' is unknown"),
        (["mlp", "--m", "1"], 2, "argument --m: must be a whole number from 2 to 10000, but is '1'"),
        (["mlp", "--input", "3x8x8"], 2, "argument --input: must be 1 to 4 sizes such as 3,224,224"),
        (["mlp", "--input", "3,0,8"], 2, "argument --input: must be 1 to 4 sizes such as 3,224,224"),
        (["mlp", "--variants", "sma"], 2, "argument --variants: variant 'sma' is unknown; did you mean 'sam'?"),
        (["mlp", "--data", "digits", "--data_from", "my_bench:data"], 2, "both name the data; give one of them"),
        (["mlp", "--data.root", "."], 2, "--data.root has no effect without --data"),
        (["mlp", "--data", "digits", "--input", "1,8,8"], 2, "--input is for random data and has no effect here"),
        (["mlp", "--data", "digitz"], 1, "data set 'digitz' is unknown; did you mean 'digits'?"),
        (["mlp", "--device", "tpu"], 1, "--device must be cpu or cuda, but is 'tpu'"),
        (["mlp", "--device", "cpu", "--step", "captured"], 1, "--step captured needs a CUDA device"),
        (["mlp", *RANDOM, "--perturb", "cutout"], 1, "perturbation 'cutout' needs length"),
        (["mlp", *RANDOM, "--perturb", "3"], 1, "--perturb must be a name or a list such as"),
        (["my_bench:setup", "--batch_size", "4"], 2, "--batch_size has no effect, because my_bench:setup returns"),
        (["my_bench:setup", "--data.root", "."], 2, "--data.root has no effect, because my_bench:setup returns"),
        (["my_bench:raises"], 1, "my_bench:raises: your code raised KeyError: 'my own words'"),
        (["my_bench:nothing"], 1, "function 'nothing' is unknown"),
        (["--model_from", "my_bench:raises", *RANDOM], 1, "your code raised KeyError: 'my own words'"),
        (["--model_from", "my_bench:broken", *RANDOM], 1, "your code raised KeyError: 'in forward'"),
        (["--model_from", "my_bench:wrong_head", *RANDOM], 1, "has 2"),
    ],
)
def test_refusals(words, code, message, capsys, tmp_path):
    assert call(*words, "--out", "out") == code
    printed = capsys.readouterr()
    assert printed.err.startswith("maxup bench: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["link", "link/sub", "loop", "loop/sub"])
def test_broken_links_are_refused_before_anything_is_measured(out, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("maxup.lab.bench.measure.bench", lambda *args, **settings: pytest.fail("measured"))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert call("mlp", *RANDOM, *TINY, "--out", out) == 2
    assert "is a broken link; give a folder, which need not exist" in capsys.readouterr().err


def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("maxup.lab.bench.measure.bench", lambda *args, **settings: pytest.fail("measured"))
    (tmp_path / "out" / "cost.png").mkdir(parents=True)
    assert call("mlp", *RANDOM, *TINY, "--out", "out") == 1
    assert "out/cost.png cannot be written: Is a directory; choose another one" in capsys.readouterr().err
    assert call("mlp", *RANDOM, *TINY, "--out", "") == 2
    assert "argument --out: '' is not a name; give a folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["resnet20", "--input", "5"], ["resnet20", "--input", "3,4,4", "--batch_size", "1"]])
def test_a_batch_that_does_not_fit_the_network(words, capsys):
    assert call(*words, "--rounds", "1", "--train_steps", "0") == 1
    printed = capsys.readouterr().err
    assert "maxup bench: a forward pass on the batch failed: " in printed
    assert "Traceback" not in printed


def test_the_example_of_the_docs(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    (tmp_path / "mine_of_the_docs.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    commands = re.findall(r"^maxup bench (.*mine:.*?)(?: *#.*)?$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = command.replace("mine:", "mine_of_the_docs:").split()
        assert call(*words, *TINY, "--variants", "maxup") == 0
        assert "\nmaxup " in capsys.readouterr().out


def test_a_step_that_does_not_fit(capsys, monkeypatch):
    def check(work):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("maxup.lab.bench.measure.check", check)
    assert call("mlp", *RANDOM) == 1
    assert "does not fit into memory; use a smaller --batch_size" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_cuda_without_a_device(capsys):
    assert call("mlp", "--device", "cuda") == 1
    assert "torch finds no CUDA device; use --device cpu" in capsys.readouterr().err

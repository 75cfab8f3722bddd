"""`maxup eval` tells what training recorded."""

import re

import pytest
import torch

from maxup.cli.main import main
from maxup.data import load_data
from maxup.data.images import split
from maxup.engine.runs import evaluate, open_run
from tests.cli.runs import make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "seed-0"
    return folder, make(folder)


@pytest.mark.parametrize("which", ["last", "best"])
def test_it_equals_what_training_recorded(run, which):
    folder, record = run
    opened = open_run(folder, which)
    for name, found in evaluate(opened).items():
        for key in ("loss", "accuracy"):
            assert found[key] == record[which][f"{name}_{key}"]
    assert opened.recorded == record[which]


def test_it_equals_a_plain_evaluation_of_the_averaged_weights(run):
    opened = open_run(run[0])
    images, _ = load_data("digits")
    _, test = split(images, 200, 0)
    with torch.no_grad():
        output = opened.model(test.x.float() / 16)
    assert evaluate(opened)["test"]["accuracy"] == pytest.approx(float((output.argmax(1) == test.y).double().mean()))
    assert evaluate(opened)["test"]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(output, test.y)))


def test_it_prints_every_split(run, capsys):
    folder, record = run
    assert main(["eval", str(folder)]) == 0
    printed = capsys.readouterr().out
    numbers = dict(re.findall(r"(test|validation) +accuracy ([\d.]+)", printed))
    assert float(numbers["test"]) == pytest.approx(100 * record["last"]["test_accuracy"], abs=0.006)
    assert set(numbers) == {"test", "validation"}


def test_bad_folders_give_a_sentence(run, tmp_path, capsys):
    assert main(["eval", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr().err
    assert "not the folder of a run" in said
    assert "there is no such folder" in said
    assert main(["eval", str(tmp_path)]) == 1
    assert "it has no folder checkpoints\n" in capsys.readouterr().err
    assert main(["eval", str(run[0].parent)]) == 1
    assert f"did you mean {run[0]}?" in capsys.readouterr().err
    broken = tmp_path / "broken"
    (broken / "checkpoints" / "step-000003").mkdir(parents=True)
    assert main(["eval", str(broken)]) == 1
    said = capsys.readouterr().err
    assert "no last checkpoint" in said
    assert "not a whole checkpoint" in said


def test_a_whole_checkpoint_of_something_else_gives_a_sentence(run, tmp_path, capsys):
    from dataclasses import asdict

    from maxup.engine import checkpoint
    from maxup.recipes.schema import Recipe

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
        assert main(["eval", str(tmp_path / str(number))]) == 1, state
        assert len(capsys.readouterr().err.splitlines()) == 1

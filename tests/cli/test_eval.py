"""`maxup eval` tells what training recorded."""

import json
import re

import pytest

from maxup.cli.main import main
from tests.cli.runs import make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "seed-0"
    return folder, make(folder)


def test_it_prints_every_split(run, capsys):
    folder, record = run
    assert main(["eval", str(folder)]) == 0
    printed = capsys.readouterr().out
    numbers = dict(re.findall(r"(test|validation) +accuracy ([\d.]+)", printed))
    assert float(numbers["test"]) == pytest.approx(100 * record["last"]["test_accuracy"], abs=0.006)
    assert set(numbers) == {"test", "validation"}


def test_json_is_one_document(run, capsys):
    folder, record = run
    assert main(["eval", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["run"], found["checkpoint"], found["step"]) == (str(folder), "last", record["steps"])
    for split in ("test", "validation"):
        assert found["splits"][split]["accuracy"] == pytest.approx(record["last"][f"{split}_accuracy"])
    assert "accuracy" in err


def test_data_that_are_not_there_are_named(run, capsys):
    with pytest.raises(SystemExit):
        main(["eval", str(run[0]), "--data.root", "/nowhere"])
    assert "--data.root: there is no folder '/nowhere'" in capsys.readouterr().err
    assert main(["train", "digits/mlp-gaussian", "--data.root", "/nowhere"]) == 1
    assert "data.root: there is no folder /nowhere; correct it, or remove it" in capsys.readouterr().err


def test_bad_folders_gets_one_message(run, tmp_path, capsys):
    assert main(["eval", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr().err
    assert "not a run folder" in said
    assert "it does not exist" in said
    assert main(["eval", str(tmp_path)]) == 1
    assert "it has no checkpoints/\n" in capsys.readouterr().err
    assert main(["eval", str(run[0].parent)]) == 1
    assert f"did you mean {run[0]}?" in capsys.readouterr().err
    broken = tmp_path / "broken"
    (broken / "checkpoints" / "step-000003").mkdir(parents=True)
    assert main(["eval", str(broken)]) == 1
    said = capsys.readouterr().err
    assert "no last checkpoint" in said
    assert "there is no other checkpoint; train again" in said
    assert "not a valid checkpoint" in said


def test_robustness_is_a_table_a_file_and_part_of_the_document(run, capsys):
    folder, record = run
    assert main(["eval", str(folder), "--robustness", "--images", "40"]) == 0
    printed = capsys.readouterr().out
    held = json.loads((folder / "robustness.json").read_text())
    assert (held["checkpoint"], held["step"], held["images"]) == ("last", record["steps"], 40)
    for name, levels in held["corruptions"].items():
        (row,) = re.findall(rf"^{name} (.*)", printed, re.MULTILINE)
        accuracies = [f"{100 * one['accuracy']:.2f}" for one in levels]
        assert row.split()[:5] == accuracies
        assert float(row.split()[5]) == pytest.approx(sum(100 * one["accuracy"] for one in levels) / 5, abs=0.006)
    (clean,) = re.findall(r"^clean +([\d.]+) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE)
    expected = [100 * held["clean"]["accuracy"], 100 * held["clean"]["ece"], held["clean"]["nll"]]
    assert list(map(float, clean)) == pytest.approx(expected, abs=0.006)
    assert re.search(r"^PGD( +[\d.]+){8}$", printed, re.MULTILINE)
    assert f"Written: {folder / 'robustness.json'}" in printed
    assert main(["eval", str(folder), "--robustness", "--images", "10", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["robustness"]["images"] == 10
    assert "test" in json.loads(out)["splits"]
    assert f"{folder / 'robustness.json'} is unchanged: it already covers more images." in err
    assert json.loads((folder / "robustness.json").read_text()) == held


def test_options_without_effect_are_rejected(run, capsys):
    with pytest.raises(SystemExit):
        main(["eval", str(run[0]), "--images", "3"])
    assert "--images has no effect without --robustness; remove it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", str(run[0]), "--robustness", "--dynamic"])
    assert "not allowed with argument" in capsys.readouterr().err

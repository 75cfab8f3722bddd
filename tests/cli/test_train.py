"""`maxup train`: the recipe, the run folder, and what is printed."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
import yaml

from maxup.cli.main import main
from maxup.errors import InterruptedRunError
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.storage import checkpoint
from maxup.lab.tasks.language import Language
from maxup.lab.train import loop
from tests.lab.tasks.test_language import folder as text  # noqa: F401  # a fixture

SHORT = ["--epochs", "1", "--data.train_size", "100", "--model.args", "{hidden: [4]}", "--trackers", "none"]


def test_print_config_is_a_recipe_that_says_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--objective.m", "9", "--optim.lr", "0.25", "--seed", "3"]
    assert main(["train", "digits/mlp-gaussian-maxup", *words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(printed)
    assert parse_recipe("again.yaml", []) == parse_recipe("digits/mlp-gaussian-maxup", words)
    assert yaml.safe_load(printed)["objective"]["m"] == 9
    assert [p.name for p in tmp_path.iterdir()] == ["again.yaml"]  # nothing was trained


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["digits/mlp-gaussian", "--seed", "5"], "runs/digits/mlp-gaussian/seed-5"),
        (["sub/mine.yaml"], "runs/sub-mine/seed-0"),
        (["./sub/mine.yml"], "runs/sub-mine/seed-0"),
        (["/mine.yml"], "runs/sub-mine/seed-0"),
        (["sub/../sub/mine.yaml"], "runs/sub-mine/seed-0"),
        (["sub/mine.yaml", "--out", "there"], "there"),
    ],
)
def test_the_folder_of_a_run(tmp_path, capsys, monkeypatch, words, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for suffix in ("yaml", "yml"):
        (tmp_path / "sub" / f"mine.{suffix}").write_text("base: digits/mlp-gaussian\n")
    if words[0].startswith("/"):
        words = [str(tmp_path / "sub" / words[0][1:])]
    assert main(["train", *words, *SHORT]) == 0
    record = json.loads((tmp_path / folder / "run.json").read_text())
    assert record["recipe"]["epochs"] == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{folder}: test loss ")


@pytest.mark.parametrize("rank", ["", "00"])
def test_the_result_is_printed_if_the_rank_is_0(tmp_path, capsys, monkeypatch, rank):
    """Also if it is not written as 0, as in the rest of the library."""
    monkeypatch.setenv("RANK", rank)
    assert main(["train", "digits/mlp-gaussian", *SHORT, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{tmp_path / 'run'}: test loss ")


def test_the_same_command_again_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "digits/mlp-gaussian", *SHORT, "--out", "run"]
    assert main(command) == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_it_prints_the_step_at_which_it_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "digits/mlp-gaussian", *SHORT, "--out", "run", "--epochs", "2", "--save_every", "0"]
    with monkeypatch.context() as patch:
        saves, real = [], checkpoint.save

        def save(folder, step, state, **options):
            real(folder, step, state, **options)
            saves.append(step)
            if len(saves) == 3:
                raise InterruptedRunError("stopped")

        patch.setattr(checkpoint, "save", save)
        assert main(command) == 130
    assert "resuming" not in capsys.readouterr().out
    assert main(command) == 0
    out = capsys.readouterr().out
    total = json.loads((tmp_path / "run" / "run.json").read_text())["steps"]
    assert f"resuming at step {saves[-1]} of {total}\n" in out
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "resuming" not in out
    assert f"already finished, at step {total}; --restart or restart=True trains it again\n" in out


def test_it_first_says_what_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits/mlp-gaussian-maxup", *SHORT, "--out", "run"]) == 0
    device = "cpu" if not torch.cuda.is_available() else torch.cuda.get_device_name(0)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "digits/mlp-gaussian-maxup, in run",
        f"model mlp (310 parameters); data digits (100 examples, 10 classes); objective maxup, m = 4; {device}",
    ]
    assert main(["ls", "run", "--runs", "."]) == 0
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words[:4] == ["run", "digits/mlp-gaussian-maxup,", "data.train_size", "100,"]


def test_extend_and_restart(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "digits/mlp-gaussian", *SHORT, "--out", "run", "--optim.schedule", "constant"]
    assert main(command) == 0
    steps = json.loads((tmp_path / "run" / "run.json").read_text())["steps"]
    capsys.readouterr()
    assert main([*command, "--epochs", "2"]) == 1
    assert "continue it with --extend" in capsys.readouterr().err
    assert main([*command, "--epochs", "2", "--extend"]) == 0
    assert f"resuming at step {steps} of {2 * steps}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["last"]["epoch"] == 2
    assert main([*command, "--restart"]) == 0
    assert "the earlier run is now in run-old-1\n" in capsys.readouterr().out
    found = {name: json.loads((tmp_path / name / "run.json").read_text())["last"]["epoch"] for name in os.listdir()}
    assert found == {"run": 1, "run-old-1": 2}
    with pytest.raises(SystemExit) as caught:
        main([*command, "--restart", "--extend"])
    assert caught.value.code == 2


def test_a_setting_is_not_taken_for_an_option(tmp_path, capsys):
    """--o is not --out, and --save is not --save_every."""
    for words in (["--o", str(tmp_path)], ["--save", "3"]):
        assert main(["train", "digits/mlp-gaussian", *words]) == 1
        assert "is unknown" in capsys.readouterr().err


def test_a_run_with_restarts_prints_its_best_epoch_and_total_time(text, tmp_path, capsys, monkeypatch):  # noqa: F811
    """With a fake clock: a step takes a second, the last evaluation a hundred, and nothing else takes time."""
    monkeypatch.chdir(tmp_path)
    now, plain = [0.0], Language.step

    def step(*args):
        now[0] += 1
        return plain(*args)

    def finish(*args, **options):
        now[0] += 100
        return {}

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Language, "step", step)
    monkeypatch.setattr(Language, "finish", finish)
    small = ["--data.root", str(text), "--batch_size", "4", "--optim.lr", "5", "--language.test_columns", "2"]
    options = ["--trackers", "none", "--out", "run"]
    assert main(["train", "smoke/awd_lstm-embedding_dropout", *small, *options]) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    line = capsys.readouterr().out.splitlines()[-1]
    best, last = record["best"]["epoch"], record["last"]["epoch"]
    assert best < last
    assert f"  at epoch {best}, the best of {last}, in " in line
    assert record["training_seconds"] == now[0] - 100
    assert record["seconds"] == now[0]

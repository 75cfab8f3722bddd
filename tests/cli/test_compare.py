"""`maxup compare`, from the command line, on a tiny recipe."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest

from maxup.cli.main import main
from maxup.errors import RecipeError
from maxup.lab.data import load_data
from maxup.lab.experiments.compare import Attack, Measurement, make_attack, rows, run_once
from maxup.lab.recipes.load import parse_recipe, recipe_from
from tests.waiting import maxup_after

ROOT = Path(__file__).parent.parent.parent
TINY = ["--epochs", "3", "--data.train_size", "200", "--model.args", "{hidden: [32]}"]
OTHERS = ("average", "easiest", "adversarial", "smoothadv", "hard_examples")
KILLED = """
import os, signal
from maxup.lab.tasks.vision import Vision
from tests.waiting import at_call
at_call(Vision, "step", 20, lambda: os.kill(os.getpid(), signal.SIGKILL))  # in the second run
"""


def maxup(*words, cwd):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    command = [sys.executable, "-m", "maxup", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("compare"), StringIO()
    words = ["digits/mlp-gaussian-maxup", "--seeds", "2", "--m", "1", "8", "--out", "c", *TINY]
    with chdir(folder), redirect_stdout(out):
        assert main(["compare", *words]) == 0
    return folder, out.getvalue()


def test_the_rows_are_the_baseline_maxup_and_the_others():
    recipe = parse_recipe("digits/mlp-gaussian-maxup", [])
    found = rows(recipe, [1, 4, 20], [*OTHERS], Attack(0.25, 2, 5))
    assert {name: row.objective["name"] for name, row in found.items()} == {
        "m = 1": "standard", "m = 4": "maxup", "m = 20": "maxup", "average of 4": "average",
        "average of 20": "average", "easiest of 4": "maxup", "easiest of 20": "maxup",
        "PGD, radius 0.25": "adversarial", "SmoothAdv, radius 0.25": "smoothadv", "hardest 25 %": "hard_examples",
    }  # fmt: skip
    assert [found[name].objective["m"] for name in ("m = 4", "m = 20", "average of 4", "average of 20")] == [4, 20] * 2
    assert found["easiest of 20"].objective == {**found["m = 20"].objective, "score": "easiest"}
    assert found["PGD, radius 0.25"].objective == {"name": "adversarial", "radius": 0.25, "p": 2.0, "steps": 5}
    assert found["m = 20"].objective["warmup"] == found["average of 4"].objective["warmup"] == 0  # the recipe's
    assert {row.epochs for row in found.values()} == {recipe.epochs}


def test_fast_scores_every_maxup_row_in_the_other_way_too():
    recipe = parse_recipe("digits/mlp-gaussian-maxup", [])
    found = rows(recipe, [1, 4, 8], ["easiest"], Attack(0.25), fast=True)
    assert list(found) == ["m = 1", "m = 4", "m = 8", "m = 4, fast", "m = 8, fast", "easiest of 4", "easiest of 8"]
    assert found["m = 8, fast"].objective == {**found["m = 8"].objective, "fast": True}
    assert not found["m = 8"].objective["fast"]


def test_it_writes_numbers_a_picture_and_a_table(compared):
    folder, printed = compared
    assert "3 or more seeds give the paired 95 % interval" in printed
    assert not re.search(r"\[[+-]", printed), "an interval from two seeds"
    assert (folder / "c" / "compare.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((folder / "c" / "compare.json").read_text())
    assert list(result["runs"]) == ["m = 1", "m = 8", "m = 1, time of m = 8"]
    assert result["seeds"] == [0, 1]
    assert recipe_from(result["recipe"]).epochs == 3
    assert {"commit", "versions", "hardware"} <= set(result["environment"])
    for name, runs in result["runs"].items():
        for run in runs:
            assert set(run) == {"seed", "epochs", "clean", "worst", "attacked", "gradient", "seconds"}
            assert run["worst"] <= 100
            assert run["attacked"] <= run["clean"] + 5
        assert result["summary"]["clean"][name]["mean"] == pytest.approx(sum(r["clean"] for r in runs) / 2)


def test_the_attack_keeps_pixels_in_range_if_the_network_normalizes(tmp_path, monkeypatch):
    clips = []
    monkeypatch.setattr(
        "maxup.lab.experiments.compare.measure", lambda *args, attack, **options: clips.append(attack.clip) or {}
    )
    normalize, data = ["--model.normalize", "true"], load_data("digits")[0]
    for i, (options, data_from) in enumerate(
        (([], None), (normalize, None), (normalize, lambda: (data.x.float(), data.y)))  # not pixels in [0, 1]
    ):
        recipe = parse_recipe("digits/mlp-gaussian-maxup", [*TINY, *options])
        run_once(recipe, tmp_path / str(i), Measurement(Attack(0.5)), data_from=data_from)
    assert clips == [None, (0, 1), None]


TOKENS = """
import torch
from torch import nn


def data():
    tokens = torch.randint(9, (80, 6), generator=torch.Generator().manual_seed(0))
    return tokens, (tokens.sum(1) > 24).long()


def net(shape, num_classes):
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, num_classes))
"""


def test_token_ids_are_compared_without_attack_and_gradient(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TOKENS)
    (tmp_path / "mine.yaml").write_text("perturb: [{name: token_dropout, p: 0.2, mask_id: 0}]\nepochs: 1\n")
    monkeypatch.chdir(tmp_path)
    words = ["mine.yaml", "--data_from", "mine:data", "--model_from", "mine:net", "--seeds", "2", "--m", "3"]
    assert main(["compare", *words, "--objectives", "easiest", "--out", "c"]) == 0
    result = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert set(result["summary"]) == {"clean", "worst", "seconds"}
    assert list(result["runs"]) == ["m = 1", "m = 3", "easiest of 3", "m = 1, time of m = 3"]


def test_language_models_are_compared_by_their_test_perplexity(tmp_path, monkeypatch, capsys):
    for name, words in (("train", 400), ("valid", 100), ("test", 100)):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"a{i % 7} b{i % 5} c{i % 3}" for i in range(words)) + "\n")
    monkeypatch.chdir(tmp_path)
    small = ["--data.root", str(tmp_path), "--model.args", "{embedding: 8, hidden: 8, layers: 1}", "--epochs", "2"]
    words = ["text/awd_lstm-embedding_dropout-maxup", "--seeds", "3", "--out", "c", "--no_equal_time", *small]
    assert main(["compare", *words]) == 0
    printed = capsys.readouterr().out
    assert "m = 2 against m = 1 at equal epochs. " in printed
    assert "Welch's 95 % interval" in printed
    result = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert set(result["summary"]) == {"test_perplexity", "seconds"}
    for row, runs in result["runs"].items():
        for run in runs:
            folder = tmp_path / "c" / "runs" / row.replace(" = ", "-") / f"seed-{run['seed']}"
            assert main(["eval", str(folder), "--json"]) == 0
            found = json.loads(capsys.readouterr().out)["splits"]["test"]
            assert run["test_perplexity"] == pytest.approx(found["perplexity"])
    plot = (tmp_path / "c" / "compare.png").read_bytes()
    assert plot.startswith(b"\x89PNG")


def test_an_interruption_outside_of_training_says_that_the_command_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("maxup.lab.experiments.compare.measure", Mock(side_effect=KeyboardInterrupt))
    assert main(["compare", "digits/mlp-gaussian-maxup", "--seeds", "2", "--out", "c", *TINY]) == 130
    printed = capsys.readouterr()
    assert printed.out.startswith("4 runs in c/runs, then runs at equal time\n")
    assert printed.err == "maxup compare: interrupted; finished runs are kept, and the same command resumes\n"


def test_time_is_equal_by_the_measured_ratio(compared):
    result = json.loads((compared[0] / "c" / "compare.json").read_text())
    seconds = {name: [run["seconds"] for run in runs] for name, runs in result["runs"].items()}
    ratios = [a / b for a, b in zip(seconds["m = 8"], seconds["m = 1"], strict=True)]
    stretch = result["equal_time"]["m = 1, time of m = 8"]
    assert stretch["ratio"] == pytest.approx(sum(ratios) / 2)  # the median of two
    assert stretch["epochs"] == max(1, round(3 * stretch["ratio"]))
    assert {run["epochs"] for run in result["runs"]["m = 1, time of m = 8"]} == {stretch["epochs"]}


def test_clean_accuracy_is_what_training_recorded(compared):
    folder = compared[0] / "c"
    result = json.loads((folder / "compare.json").read_text())
    for row, name in (("m = 1", "m-1"), ("m = 8", "m-8")):
        for run in result["runs"][row]:
            record = json.loads((folder / "runs" / name / f"seed-{run['seed']}" / "run.json").read_text())
            assert run["clean"] == pytest.approx(100 * record["last"]["test_accuracy"])
            assert run["seconds"] == record["training_seconds"] <= record["seconds"]


def test_finished_runs_are_not_trained_again(compared, monkeypatch, capsys):
    folder, first = compared
    monkeypatch.chdir(folder)
    records = {p: p.stat().st_mtime_ns for p in folder.rglob("run.json")}
    before = json.loads((folder / "c" / "compare.json").read_text())
    assert main(["compare", "digits/mlp-gaussian-maxup", "--seeds", "2", "--m", "8", "--out", "c", *TINY]) == 0
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("run.json")} == records
    assert json.loads((folder / "c" / "compare.json").read_text())["runs"] == before["runs"]
    printed = capsys.readouterr().out
    assert (first.count("(trained before)"), printed.count("(trained before)")) == (0, 6)
    assert "different settings" not in first + printed


def test_a_result_with_different_settings_is_kept(compared, monkeypatch, capsys):
    monkeypatch.chdir(compared[0])
    shutil.copytree("c", "d")
    first, plot = Path("d/compare.json").read_bytes(), Path("d/compare.png").read_bytes()
    words = ["digits/mlp-gaussian-maxup", "--seeds", "3", "--m", "8", "--images", "50", "--out", "d", *TINY]
    assert main(["compare", *words, "--no_equal_time"]) == 0
    assert "different settings (seeds, images, rows); it is now compare-1.json" in capsys.readouterr().out
    assert (Path("d/compare-1.json").read_bytes(), Path("d/compare-1.png").read_bytes()) == (first, plot)
    assert Path("d/compare.png").read_bytes() != plot
    assert main(["compare", *words, "--optim.lr", "0.2"]) == 1
    assert "(different: optim.lr); choose another folder with --out, or remove d" in capsys.readouterr().err


def test_json_is_what_the_file_has(compared, monkeypatch, capsys):
    folder, _ = compared
    monkeypatch.chdir(folder)
    words = ["digits/mlp-gaussian-maxup", "--seeds", "2", "--m", "1", "8", "--out", "c", *TINY]
    assert main(["compare", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((folder / "c" / "compare.json").read_text())
    assert "seed 1  m = 8" in err


@pytest.mark.slow
def test_killed_and_called_again_it_gives_the_same_numbers(compared, tmp_path):
    words = ["compare", "digits/mlp-gaussian-maxup", "--seeds", 2, "--m", 8, "--out", "c", "--no_equal_time", *TINY]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(maxup_after(KILLED, *words), cwd=tmp_path, env=env, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("run.json"))) == 1  # of 4
    done = maxup(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    def numbers(folder):
        runs = json.loads((folder / "c" / "compare.json").read_text())["runs"]
        return [{**run, "seconds": 0} for row in ("m = 1", "m = 8") for run in runs[row]]

    assert numbers(tmp_path) == numbers(compared[0])


def test_a_run_from_another_machine_is_noted(compared, monkeypatch, capsys):
    folder, _ = compared
    monkeypatch.chdir(folder)
    record = folder / "c" / "runs" / "m-8" / "seed-1" / "run.json"
    text = record.read_text()
    record.write_text(json.dumps(json.loads(text) | {"environment": {"hardware": "abacus", "threads": 1}}))
    words = ["--seeds", "2", "--m", "8", "--out", "c", "--no_equal_time", *TINY]
    assert main(["compare", "digits/mlp-gaussian-maxup", *words]) == 0
    assert "m-8/seed-1 was trained in another environment (hardware" in capsys.readouterr().out
    record.write_text("no JSON")
    assert main(["compare", "digits/mlp-gaussian-maxup", *words]) == 1
    assert "run.json cannot be read" in capsys.readouterr().err
    record.write_text(text)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--seeds", "1"], 2, "a whole number from 2 to 10000"),
        (["--seeds", "2", "--m", "0"], 2, "a whole number from 1 to 10000"),
        (["--seeds", "2", "--m", "1"], 1, "nothing to compare"),
        (["--seeds", "2", "--objective.score", "easiest"], 1, "is a control; remove it, and add the row with --obj"),
        (["--seeds", "2", "--epochz", "3"], 1, "did you mean 'epochs'"),
        (["--seeds", "2", "--perturb", "[]"], 1, "perturb is empty"),
        (["--seeds", "2", "--perturb", "[{name: gaussian, sigma: -1}]"], 1, "0 or more"),
        (["--seeds", "2", "--radius", "-1"], 2, "a number from 0 to 1e+09"),
        (["--seeds", "2", "--certify", "10"], 1, "certification needs Gaussian noise on pixels, but the recipe has"),
        (["--seeds", "2", "--certify", "0"], 2, "a whole number from 1"),
        (["--seeds", "2", "--certify", "9", "--certify_n", "99"], 2, "a whole number from 100"),
        (["--seeds", "2", "--certify_n", "1000"], 2, "--certify_n needs --certify IMAGES"),
        (["--seeds", "2", "--certify_sigma", "0.5"], 2, "--certify_sigma needs --certify IMAGES"),
        (["--seeds", "2", "--certify", "9", "--certify_sigma", "0"], 2, "above 0"),
        (["--seeds", "2", "--objectives", "smoothadv"], 1, "objective 'smoothadv' attacks pixels under Gaussian noise"),
        (["--seeds", "2", "--fast", "--objective.fast", "true"], 1, "but objective.fast is true; remove one of them"),
        (["--seeds", "2", "--fast", "--objective.strategy", "retain"], 1, "fast=True needs strategy="),
        (["--seeds", "2", "--objective", "hard_examples"], 1, "but the objective is 'hard_examples'"),
    ],
)
def test_nonsense_is_rejected_gets_one_message(words, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        found = main(["compare", "digits/mlp-gaussian-maxup", *words])
    except SystemExit as stop:
        found = stop.code
    said = capsys.readouterr().err
    assert found == code
    assert message in said
    assert not list(tmp_path.iterdir())


def test_settings_of_every_row_can_be_given_and_lone_images_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--seeds", "2", "--m", "2", "--objectives", "adversarial", "--no_equal_time", "--out", "c"]
    words += ["--epochs", "1", "--model.args", "{hidden: [8]}", "--data.train_size", "1284"]  # leaves 512 and one more
    words += ["--perturb", "[{name: mixup}]", "--objective.norm", "running", "--radius", "0.25", "--attack_steps", "2"]
    assert main(["compare", "digits/mlp-gaussian-maxup", *words]) == 0
    assert "PGD, radius 0.25" in capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "folder"), [("sub/mine.yml", "sub-mine"), ("/mine.yml", "sub-mine")])
def test_the_folder_of_a_comparison(tmp_path, monkeypatch, recipe, folder):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yml").write_text("base: digits/mlp-gaussian-maxup\n")
    monkeypatch.chdir(tmp_path)

    def compare(recipe, folder, **options):
        raise RuntimeError(f"to {folder}")

    monkeypatch.setattr("maxup.lab.experiments.compare.compare", compare)
    named = str(tmp_path / "sub" / recipe[1:]) if recipe[0] == "/" else recipe
    with pytest.raises(RuntimeError, match=rf"^to runs/compare/{folder}$"):
        main(["compare", named, "--seeds", "2"])


def test_another_recipe_in_the_same_folder_is_rejected(compared, monkeypatch, capsys):
    monkeypatch.chdir(compared[0])
    words = ["--seeds", "2", "--out", "c", *TINY, "--batch_size", "20"]
    assert main(["compare", "digits/mlp-gaussian-maxup", *words]) == 1
    assert "another recipe (different: batch_size)" in capsys.readouterr().err


def test_importing_the_verbs_imports_no_torch():
    code = "import sys, maxup.cli.main as m; [__import__(f'maxup.cli.{v}') for v in m.find_verbs()]; "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_recipe_error_gets_one_message():
    with pytest.raises(RecipeError, match="unknown"):
        parse_recipe("digits/nothing", [])


def test_the_attack_is_that_of_an_adversarial_recipe_unless_options_say_otherwise():
    words = ["--objective", "adversarial", "--objective.radius", "0.1", "--objective.steps", "3"]
    recipe = parse_recipe("digits/mlp-gaussian", words)
    assert make_attack(recipe, radius=None, p=None, steps=None) == Attack(0.1, 2.0, 3)
    assert make_attack(recipe, radius=0.2, p=float("inf"), steps=None) == Attack(0.2, float("inf"), 3)
    trained = rows(recipe, [1], ["adversarial"], make_attack(recipe))["PGD, radius 0.1"]
    assert trained.objective == recipe.objective

"""`maxup ls`: the paper's numbers and ours beside the recipes, without torch."""

import io
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from maxup.cli.main import main
from maxup.lab.models import create_model, list_models
from maxup.lab.recipes import load
from maxup.lab.recipes.document import read_yaml
from maxup.lab.results.files import file_name
from maxup.lab.results.paper import load_paper
from tests.lab.report.runs import write_run

TWIN, MAXUP = "digits/mlp-gaussian", "digits/mlp-gaussian-maxup"


@pytest.fixture
def cells(tmp_path, monkeypatch, capsys):
    """The cells of a recipe's line."""
    monkeypatch.chdir(tmp_path)

    def found(name):
        assert main(["ls", name]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[0] == name)
        return [cell.strip() for cell in line.split("  ") if cell.strip()]

    return found


def pretend(monkeypatch, tmp_path, *names, text="# A network of tests. And more.\nseed: 0\n"):
    """Let the package have recipes of these names."""
    folder = tmp_path / "recipes"
    for name in names:
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(load, "FOLDER", folder)


def test_without_results_there_are_dashes_and_copies(cells):
    assert cells(TWIN)[-3:] == ["–", "–", "m = 1"]  # noqa: RUF001
    assert cells(MAXUP)[-3:] == ["–", "–", "m = 4"]  # noqa: RUF001
    assert cells(TWIN)[1] == "An MLP on 500 digits with Gaussian noise: the demo's baseline, m = 1"


def test_ours_is_the_mean_over_seeds_of_the_recipe_as_it_is(cells, tmp_path):
    accuracies = [0.95, 0.97, 0.961]
    for seed, accuracy in enumerate(accuracies):
        write_run(tmp_path / "runs", MAXUP, seed, accuracy, known=True, curve="", training_seconds=100.0 + seed)
    write_run(
        tmp_path / "results" / "runs",
        MAXUP,
        0,
        0.5,
        known=True,
        recipe={"objective": {"name": "maxup", "m": 9}},
        stem="seed-0-m-9",
    )
    short = file_name(1, budget=0.5)
    write_run(tmp_path / "results" / "runs", MAXUP, 1, 0.3, known=True, recipe={"epochs": 30}, stem=short)
    mean, std = 100 * statistics.mean(accuracies), 100 * statistics.stdev(accuracies)
    numbers = f"{mean:.2f} ± {std:.2f} % (n = 3), 30.00 % (n = 1, 30 of 60 epochs)"
    assert cells(MAXUP)[-2:] == [numbers, "101 s, 60 s"]


def test_every_budget_is_shown_to_compare_with_the_baseline(cells, tmp_path):
    for name, budget, accuracy in ((TWIN, 0.36, 0.935), (TWIN, 0.3, 0.925), (MAXUP, 0.3, 0.933)):
        short = file_name(1, budget=budget)
        write_run(tmp_path / "results" / "runs", name, 1, accuracy, known=True, stem=short, shared=budget == 0.3)
    assert cells(TWIN)[-2:] == ["93.50 % (n = 1, 22 of 60 epochs), 92.50 % (n = 1, 18 of 60 epochs)", "60 s, –"]  # noqa: RUF001
    assert cells(MAXUP)[-2:] == ["93.30 % (n = 1, 18 of 60 epochs)", "m = 4"]


def test_the_paper_s_number_is_that_of_the_recipe_s_m(cells, tmp_path, monkeypatch):
    maxup = "objective: {name: maxup, m: 10}\n"
    pretend(monkeypatch, tmp_path, "cifar100/wrn28_10-cutout-maxup", text="# W.\n" + maxup)
    rows = load_paper()["table-ablation"].rows
    assert cells("cifar100/wrn28_10-cutout-maxup")[1:] == ["W", "82.48 ± 0.23 %", "–", "m = 10"]  # noqa: RUF001
    assert rows["wrn28_10-m10"].values["top1"].mean == 82.48


def test_every_recipe_of_the_paper_has_its_number(tmp_path, monkeypatch, capsys):
    tables = load_paper()
    names = {row.recipe for table in tables.values() for row in table.rows.values() if row.recipe}
    pretend(monkeypatch, tmp_path, *names)
    monkeypatch.chdir(tmp_path)
    assert main(["ls"]) == 0
    head, *rest = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", head) == ["recipe", "what", "paper", "result (n seeds)", "time or m"]
    lines = {line.split()[0]: line for line in rest}
    assert set(lines) == names
    assert all(line[head.index("what") :].startswith("A network of tests") for line in rest)
    assert "94.84 ± 0.11 %" in lines["cifar10/resnet110-cutout"]
    assert "76.3 %" in lines["imagenet/resnet50-vanilla"]
    assert "56.50 perplexity" in lines["ptb/awd_lstm-embedding_dropout"]
    assert "60 % at 0.25" in lines["certify/resnet110-gaussian"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_terminal_gets_a_table_in_which_nothing_is_cut_off(tmp_path, monkeypatch, width):
    from maxup.lab.report.listing import listing

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    write_run(tmp_path / "runs", TWIN, 0, 0.9, known=True, curve="")
    write_run(tmp_path / "runs", TWIN, 1, 0.91, known=True, curve="")
    for budget in (0.3, 0.5, 0.9):
        write_run(tmp_path / "runs", TWIN, 0, 0.9, curve="", stem=file_name(0, budget=budget), seconds=123456)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["ls", "digits"]) == 0
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    heads = [line.split() for line in lines if "result (n" in line]
    assert [head[0] for head in heads] == ["your", "recipe"]
    assert [("what" in head) for head in heads] == [width == 140] * 2
    found = listing("digits", results=Path("results/runs"), runs=Path("runs"))
    lines = [line for line in lines if "result (n" not in line]
    words = "".join(sorted("".join(line.replace(" ", "") for line in lines)))
    cells = [cell for entry in (*found.runs, *found.recipes) for cell in list(vars(entry).values())[:5]]
    wanted = "".join(sorted("".join(cells).replace(" ", "")))
    assert words == wanted


def test_broken_results_are_named_on_the_side(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "runs" / TWIN / "seed-0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert main(["ls", "nothing like that"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    left_out, nothing = printed.err.splitlines()
    assert "seed-0.json is skipped" in left_out
    assert nothing == "no recipe has 'nothing like that' in its name, and no run in runs"


def test_your_runs_come_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for seed, accuracy in enumerate((0.75, 0.25)):
        write_run(runs, MAXUP, seed, accuracy, known=True, curve="", recipe={"optim": {"lr": 0.05}}, seconds=10)
    write_run(runs, "mine", 0, 0.5, curve="", training_seconds=2.5)
    path = write_run(runs, "try", 0, 0.5, known=True, of=MAXUP, curve="", recipe={"epochs": 3}, seconds=10)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"recipe_name": MAXUP}))
    (runs / "later" / "checkpoints" / "step-000120").mkdir(parents=True)
    (runs / "later" / "checkpoints" / "step-000060").mkdir()
    assert main(["ls"]) == 0
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:6] == [
        ["your runs", "what", "m", "result (n seeds)", "time"],
        [f"runs/{MAXUP}/seed-*", "optim.lr 0.05", "4", "50.00 ± 35.36 % (n = 2)", "10 s"],
        ["runs/mine/seed-0", "mine", "1", "50.00 % (n = 1)", "2.5 s"],
        ["runs/try/seed-0", f"{MAXUP}, 3 of 60 epochs", "4", "50.00 % (n = 1)", "10 s"],
        ["runs/later", "not finished, saved at step 120", *["–"] * 3],  # noqa: RUF001
        ["recipe", "what", "paper", "result (n seeds)", "time or m"],
    ]
    assert main(["ls", "mine"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["your", "runs/mine/seed-0"]


def test_it_says_where_it_looked_for_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["ls", "digits", "--runs", "there"]) == 0
    assert capsys.readouterr().err == "no run with 'digits' in its name in there; --runs names another folder\n"


def test_json_is_one_document(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", MAXUP, 0, 0.75, known=True, curve="", seconds=10)
    assert main(["ls", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    numbers = {"mean": 75.0, "std": None, "n": 1, "seconds": 10.0}
    (run,) = found["runs"]
    assert run == {
        "run": f"runs/{MAXUP}/seed-0", "what": MAXUP, "folders": [f"runs/{MAXUP}/seed-0"], "recipe": MAXUP, "m": 4,
        "metric": "test_accuracy", **numbers,
    }  # fmt: skip
    recipe = found["recipes"][1]
    assert (recipe["recipe"], recipe["paper"]) == (MAXUP, None)
    assert recipe["ours"] == [{"budget": 1.0, "metric": "top1", **numbers}]
    assert main(["ls", "cifar10/resnet110-cutout", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipes"][0]["paper"] == {"mean": 94.84, "std": 0.11}
    assert main(["ls", "--models", "mlp", "--json"]) == 0
    (network,) = json.loads(capsys.readouterr().out)["models"]
    assert (network["name"], network["parameters"]) == ("mlp", sum(p.numel() for p in mlp().parameters()))


def mlp():
    return create_model("mlp", shape=(1, 8, 8), num_classes=10)


def test_it_never_imports_torch_or_matplotlib(tmp_path):
    write_run(tmp_path / "runs", TWIN, 0, 0.9, known=True, curve="")
    code = (
        "import sys; from maxup.cli.main import main; main(['ls']); "
        "assert not {'torch', 'matplotlib', 'scipy', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.slow
def test_every_network_with_its_size(capsys):
    assert main(["ls", "--models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert set(list_models()) <= set(rows)
    assert rows["mlp"][:4] == ["301.07", "k", "302.09", "k"]
    assert rows["timm/resnet101"][:4] == ["44.55", "M", "7.85", "G"]
    assert rows["timm/tf_efficientnet_b8"][-5:] == ["3", "x", "845", "x", "845"]


def test_some_networks(capsys):
    assert main(["ls", "mlp", "--models"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["network", "mlp"]


def test_no_network_of_a_name_gives_one_message(capsys):
    for word in ("zzz", "timm/zzz"):
        assert main(["ls", "--models", word]) == 1
        assert capsys.readouterr() == ("", f"no network has {word!r} in its name\n")


def test_networks_of_other_packages_are_listed_by_the_beginning_of_their_name(capsys):
    assert main(["ls", "--models", "timm/resnet10"]) == 0
    names = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert len(names) > 5
    assert names["timm/resnet101"][:4] == ["44.55", "M", "7.85", "G"]
    assert names["timm/resnet101d"] == []  # of so many, names alone
    assert main(["ls", "--models", "pytorchcv/resnet20_c"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert "pytorchcv/resnet20_cifar10" in [line.split()[0] for line in lines]
    assert all(line.split()[2] in ("k", "M") for line in lines)


def test_networks_of_a_missing_package_give_one_message(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["ls", "--models", "timm/"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("maxup ls: timm networks need the timm extra")


def test_without_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["ls", "--models"]) == 0
    out = capsys.readouterr().out
    assert "301.07 k" in out
    assert out.count("need the timm extra: in the clone, pip install") == 4


def test_the_same_refers_to_a_row_above():
    names = load.list_recipes()
    for place, name in enumerate(names):
        path = load.find_recipe(name)
        if path.read_text().startswith("# The same with"):
            assert read_yaml(path)["base"] in names[:place]

"""`maxup report`: wrong calls give one message, and torch is not imported."""

import json
import subprocess
import sys

import pytest

from maxup.cli.main import main
from maxup.lab.results.paper import load_paper, table_names
from tests.lab.report.runs import write_run


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["report", "--help"])
    assert caught.value.code == 0
    assert "maxup report table-cifar10" in capsys.readouterr().out


@pytest.mark.parametrize("table", ["table-x", "nowhere.yaml", "", "/"])
def test_an_unknown_table_gives_one_message(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", table]) == 1
    err = capsys.readouterr().err
    assert err.startswith("maxup report: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--results", "--runs"])
@pytest.mark.parametrize("verb", ["report", "ls"])
def test_a_folder_that_is_named_must_be_there(verb, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main([verb, option, "nowhere"])
    assert caught.value.code == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["report", "reproduce"])
def test_help_names_every_table(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    tables = capsys.readouterr().out.partition("\ntables:\n")[2].split()
    assert tables[: len(table_names())] == list(table_names())


def test_a_folder_that_cannot_be_written_gives_one_message(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", "table-wt2", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_your_runs_come_first_and_empty_tables_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "cifar10/resnet110-cutout", 0, 0.9, known=True, curve="")
    write_run(tmp_path / "runs", "mine", 0, 0.75, curve="")
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    titles = [line.partition(":")[0] for line in out.splitlines() if "[%]" in line]
    with_runs = [name for name, table in load_paper().items() if "cifar10/resnet110-cutout" in recipes(table)]
    assert [title.partition(" ")[0] for title in titles] == ["your-runs", *with_runs]
    assert "75.00 (n = 1)" in out
    rest = len(load_paper()) - len(with_runs)
    assert f"\n{rest} tables of the paper without runs: --all shows them\n" in out
    assert main(["report", "--all"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} (Table" in out for name in table_names())
    assert "--all" not in out


def recipes(table):
    return {row.recipe for row in table.rows.values()}


@pytest.mark.parametrize("name", ["table-certified", "table-ablation"])
def test_a_list_with_the_file_name_of_a_table_of_the_paper_is_yours(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.yaml").write_text("recipes: [digits/mlp-gaussian]\n")
    write_run(tmp_path / "runs", "digits/mlp-gaussian", 0, 0.75, known=True, curve="")
    assert main(["report", f"{name}.yaml"]) == 0
    out = capsys.readouterr().out
    assert "75.00 (n = 1)" in out
    assert "paper" not in out


def test_without_results_it_says_where_it_looked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    notes = capsys.readouterr().out.splitlines()[:-1]
    assert notes == [
        "no results in results/runs and runs; --results and --runs name other folders",
        f"{len(table_names())} tables of the paper without runs: --all shows them",
    ]


def test_a_run_with_other_settings_is_named_if_it_is_not_in_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "cifar10/resnet110-cutout", 3, 0.9, recipe={"optim": {"lr": 9.0}}, curve="")
    assert main(["report", "table-cifar10"]) == 0
    note = "seed 3 of cifar10/resnet110-cutout is not in this table: it was trained with optim.lr 9.0\n"
    assert note in capsys.readouterr().out


def test_json_has_the_numbers_of_the_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, accuracy in enumerate((0.75, 0.25)):
        write_run(tmp_path / "runs", "cifar10/resnet110-cutout", seed, accuracy, known=True, curve="")
    assert main(["report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    table = next(table for table in found["tables"] if table["name"] == "table-cifar10")
    (row,) = [row for row in table["rows"] if row["key"] == "resnet110-cutout"]
    assert row["paper"] == {"mean": 94.84, "std": 0.11}
    (ours,) = row["ours"]
    assert (ours["mean"], ours["n"], ours["values"]) == (50.0, 2, {"0": 75.0, "1": 25.0})
    assert set(found["tables_without_runs"]) | {t["name"] for t in found["tables"]} == set(table_names())
    assert (tmp_path / found["page"]).is_file()


def test_it_never_imports_torch(tmp_path):
    code = (
        "import sys; from maxup.cli.main import main; main(['report', 'table-wt2']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)

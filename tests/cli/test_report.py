"""`maxup report`: wrong calls give one message, and torch is not imported."""

import subprocess
import sys

import pytest

from maxup.cli.main import main
from maxup.lab.results.paper import table_names


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


def test_it_never_imports_torch(tmp_path):
    code = (
        "import sys; from maxup.cli.main import main; main(['report', 'table-wt2']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)

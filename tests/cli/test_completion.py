"""Completion scripts, in the shells that are installed, against the recipes and settings themselves."""

import shutil
import subprocess
from dataclasses import asdict

import pytest

from maxup.cli.completion import describe
from maxup.cli.main import find_verbs, main
from maxup.lab.recipes.load import list_recipes
from maxup.lab.recipes.schema import Recipe, flat
from maxup.lab.results.paper import table_names
from tests.waiting import PATIENCE

BASH = """source {script}
COMP_WORDS=(maxup {words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_maxup; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """compdef() {{ :; }}
source {script}
compadd() {{ shift; for word in "$@"; do [[ $word == $PREFIX* ]] && print -r -- $word; done; }}
_files() {{ for word in *; do [[ $word == $PREFIX* ]] && print -r -- $word; done; }}
words=(maxup {words}) CURRENT=$(( ${{#words}} )) PREFIX=${{words[-1]}}
_maxup
"""
FISH = """source {script}
complete -C "maxup {words}"
"""
CALLS = {"bash": ("bash", BASH), "zsh": ("zsh", ZSH), "fish": ("fish", FISH)}


@pytest.fixture(params=CALLS)
def complete(request, tmp_path, capsys, monkeypatch):
    """Return what a shell offers after `maxup WORDS`."""
    program, code = CALLS[request.param]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    monkeypatch.chdir(tmp_path)
    assert main(["completion", request.param]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)

    def call(words):
        text = code.format(script=tmp_path / "script", words=words)
        done = subprocess.run([program, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert not done.stderr
        return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}

    return call


def test_verbs_recipes_settings_and_files(complete, tmp_path):
    assert complete("tr") == {"train"}
    assert complete("co") == {verb for verb in find_verbs() if verb.startswith("co")}
    assert complete("train digits/") == {name for name in list_recipes() if name.startswith("digits/")}
    settings = {f"--{name}" for name in flat(asdict(Recipe()), ["optim"]) if name.startswith("optim.")}
    assert complete("train digits/mlp-gaussian --optim.") == settings
    assert complete("train --ex") == {"--extend"}
    assert complete("report table-c") == {name for name in table_names() if name.startswith("table-c")}
    assert complete("completion z") == {"zsh"}
    (tmp_path / "mine.yaml").write_text("")
    assert "mine.yaml" in complete("train mi")
    (tmp_path / "our photos").mkdir()
    assert complete("eval ou") in ({"our photos"}, {"our photos/"})


def test_every_option_is_found():
    wanted = {"--help", "--out", "--extend", "--model.freeze", "--objective", "--objective.m", "--seed"}
    assert wanted <= set(describe("train").options)
    assert {"--json", "--trust", "--data.root", "--checkpoint"} <= set(describe("eval").options)
    assert describe("eval").words == []


def test_an_unknown_shell_gets_one_message(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["completion", "tcsh"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1

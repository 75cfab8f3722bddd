"""Every option of every verb with nonsense: a sentence and a code, never a traceback."""

import re

import pytest

from maxup.cli.main import VERBS, main

NONSENSE = [
    "", " ", "-1", "nan", "-inf", "1e999", "1" + "0" * 30, "9" * 5000, "0x10", "true", "null", "[1, 2]", "{a: 1}",
    "2020-01-01", "\u65e5\u672c", "x" * 5000, "a/b/c", "../..", "/", "/dev/null", "a:b", ":", "\x1b[31m", "\udc80",
    "--", "*", "%s%n", "a\nb",
]  # fmt: skip
WHERE = {"cp": ["nowhere", "there.yaml"], "export": ["nowhere", "there"], "doctor": ["nowhere:x"], "ls": [], "data": []}


def call(*words):
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


def options(verb, capsys):
    assert call(verb, "--help") == 0
    return sorted(set(re.findall(r"(?<![\w-])--[a-z_.0-9]+", capsys.readouterr().out.partition("examples:")[0])))


@pytest.mark.parametrize("share", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", VERBS)
def test_every_option_takes_nonsense_for_an_answer(verb, share, capsys, tmp_path, monkeypatch):
    """One value of `share` with every option, in turn."""
    monkeypatch.chdir(tmp_path)
    known = [option for option in options(verb, capsys) if option != "--help"]
    for number, option in enumerate(["", *known]):
        for value in NONSENSE[number % share :: share]:
            words = [f"{option}={value}", *WHERE.get(verb, ["nowhere"])] if option else [value]
            code, said = call(verb, *words), capsys.readouterr()
            assert code in ((0, 1, 2) if verb in ("ls", "data", "report") else (1, 2)), (words, said.out)
            if code:
                assert re.search(rf"^(maxup {verb}: |no \w+ has )", said.err, re.MULTILINE), (words, said.err)
                assert len(said.err) < 4000, words
            if code == 1:
                assert said.err.count("\n") == 1, (words, said.err)

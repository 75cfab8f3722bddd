"""Every option of every verb with nonsense: one message and an exit code, never a traceback."""

import re

import pytest

from maxup.cli.main import find_verbs, main

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
@pytest.mark.parametrize("verb", find_verbs())
def test_nonsense_for_every_option_gets_one_message(verb, share, capsys, tmp_path, monkeypatch):
    """Try every option with one in `share` of the values."""
    monkeypatch.chdir(tmp_path)
    known = [option for option in options(verb, capsys) if option != "--help"]
    for number, option in enumerate(["", *known]):
        for value in NONSENSE[number % share :: share]:
            if verb in ("ls", "report") and option in ("--runs", "--results") and value in ("../..", "/"):
                continue  # folders that exist, which are searched for runs, and may be large
            words = [f"{option}={value}", *WHERE.get(verb, ["nowhere"])] if option else [value]
            code, printed = call(verb, *words), capsys.readouterr()
            assert code in ((0, 1, 2) if verb in ("ls", "data", "report") else (1, 2)), (words, printed.out)
            if code:
                assert re.search(rf"^(maxup {verb}: |no \w+ has )", printed.err, re.MULTILINE), (words, printed.err)
                assert len(printed.err) < 4000, words
                assert printed.err.count("\n") == 1, (words, printed.err)

"""Names, recipes and files cannot send control characters to the terminal, a page or a plot."""

import json
import re
import sys
import unicodedata
from xml.etree import ElementTree

import pytest
import torch

from maxup.cli.main import find_verbs, main
from maxup.lab.output import make_console, one_line, printable
from maxup.lab.report.certified import draw
from maxup.lab.report.comparison import plot
from maxup.lab.report.contact_sheet import Copies, contact_sheet
from maxup.lab.report.smoothing import picture
from tests.lab.report.runs import ENVIRONMENT, write_run

NASTY = "\x1b[31m\x07\r\x9b2J\u202e\u2066\u200f\u2028"
MATH = r"a$\frac{$ x_1^2 \textbf{$"


def control_characters(text, keep="\n"):
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in keep]


def call(*words):
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


def test_every_character_is_shown_or_escaped():
    characters = "".join(map(chr, [*range(0x3000), *range(0xD700, 0x10000), *range(0xE0000, sys.maxunicode + 1, 997)]))
    shown = printable(characters)
    assert control_characters(shown, "\n\t") == []
    assert control_characters(one_line(characters), "") == []
    assert shown.encode()  # no lone surrogates, which a terminal cannot take
    plain = "αβγ 10 µm\u00a0± 3\u3000日本語 \N{GRINNING FACE} naïve"
    assert printable(plain) == plain


def test_a_console_escapes_text_and_adds_its_own_colors(capsys):
    make_console(force_terminal=True, color_system="standard").print(NASTY, style="bold")
    out = capsys.readouterr().out
    assert re.sub(r"\x1b\[[01]m", "", out) == printable(NASTY) + "\n"


@pytest.mark.parametrize("verb", find_verbs())
def test_arguments_of_a_command_are_escaped(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rests = [NASTY], [f"--{NASTY}"], ["a", f"--checkpoint={NASTY}"], [f"{NASTY}.yaml", NASTY], [f"m:{NASTY}"]
    for words in (
        *([verb, *rest] for rest in rests),
        [f"{verb}{NASTY}"],
        [verb, "digits/mlp-gaussian", "--seed", NASTY],
    ):
        assert call(*words) in (1, 2)
        shown = capsys.readouterr()
        assert shown.err
        assert control_characters(shown.out + shown.err) == []


@pytest.mark.parametrize(
    "text", ['objective: "\\e[31m\\r"', '"\\e[1m": 3', 'base: "\\e[1m\\u202E"', "optim: {name: '\u202e'}"]
)
def test_recipes_are_escaped(text, capsys, tmp_path):
    (tmp_path / f"{NASTY}.yaml").write_text(text)
    assert call("train", str(tmp_path / f"{NASTY}.yaml")) == 1
    error = capsys.readouterr().err
    assert control_characters(error) == []
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "name", [f"mine/net-{NASTY}", f"mine/{MATH}-noise", "mine/" + "long" * 50, "mine/a|b\nc-<b>&", "日本/語"]
)
def test_a_report_of_any_name(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ENVIRONMENT, "hardware", f"{MATH}{NASTY}")
    curve = "".join(json.dumps({"step": e, "epoch": e, "test_accuracy": 0.5 + 0.04 * e}) + "\n" for e in range(1, 4))
    for seed in range(2):
        write_run(tmp_path / "runs", name, seed, 0.9, curve=curve)
        write_run(tmp_path / "runs", f"{name}-maxup", seed, 0.91, curve=curve, recipe={"objective": {"name": "maxup"}})
    (tmp_path / "results").mkdir()
    assert call("report", "--runs", "runs", "--results", "results", "--out", "out") == 0
    shown = capsys.readouterr()
    assert control_characters(shown.out + shown.err) == []
    assert shown.err == ""
    assert control_characters((tmp_path / "out/report.html").read_text()) == []
    drawn = list((tmp_path / "out").glob("your-runs*.svg"))
    assert len(drawn) == 2
    for path in drawn:
        ElementTree.fromstring(path.read_bytes())
    assert len(list((tmp_path / "out").glob("your-runs*.png"))) == 2


@pytest.mark.parametrize("name", [NASTY, MATH, "$", "日本語", "x" * 2000])
def test_every_other_plot_takes_any_name(name, tmp_path):
    from maxup.lab.certify.tsv import Row
    from maxup.smoothing.smooth import Certificate

    numbers = {"mean": 90.0, "std": 1.0}
    runs = {row: [{"clean": 89.0}, {"clean": 91.0}] for row in ("m = 1", name)}
    result = {"summary": {"clean": dict.fromkeys(runs, numbers)}, "equal_time": {}, "seeds": [0, 1], "runs": runs}
    plot(result, tmp_path / "compare.png", name)
    about = {"subject": name, "sigma": 0.5, "n": 100, "alpha": 0.001, "sampling": "fixed", "radii": None, "images": "a"}
    draw(tmp_path / "certified.svg", [(about, [Row.from_certificate(0, 1, Certificate(1, 0.5, 100, 0.1))])] * 2)
    image = torch.rand(1, 8, 8)
    picture(tmp_path / "one.png", image, [3, 7], Certificate(1, 0.5, 100, 0.1), sigma=0.5, label=0, classes=[name, "b"])
    copies = Copies(torch.rand(2, 1, 1, 8, 8), torch.rand(2, 1), torch.tensor([1]))
    contact_sheet(tmp_path / "copies.svg", image[None], copies, names=[name], title=name)
    assert len(list(tmp_path.iterdir())) == 4
    for path in tmp_path.glob("*.svg"):
        ElementTree.fromstring(path.read_bytes())

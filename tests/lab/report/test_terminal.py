"""Numbers are never cut, whatever the width of the terminal."""

import io
import re
import sys

import pytest

from maxup.lab.report.tables import grid
from maxup.lab.report.terminal import WORDS, show, widths, wrap_text
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

PAPER = load_paper()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_nothing_is_cut_off(tmp_path, monkeypatch, width):
    for seed in range(3):
        for name in ("cifar10/resnet110-cutout", "cifar10/resnet110-cutout-maxup"):
            write_run(tmp_path, name, seed, 0.9 + seed / 1000)
            write_run(tmp_path, name, seed, 0.8 + seed / 100, stem=f"seed-{seed}-budget-0.3")
    out = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", out)
    tables = [compare(name, table, load_results(tmp_path, tmp_path)[0]) for name, table in PAPER.items()]
    show(tables)
    text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    for table in map(grid, tables):
        for heading, *cells in zip(table.headings, *table.rows, strict=True):
            if heading not in WORDS:
                assert {word for cell in cells for word in str(cell).split()} <= set(text.split())
    assert "…" not in text
    if width >= 80:
        assert max(map(len, text.splitlines())) <= width


def test_the_widest_column_shrinks_first_and_only_names_are_cut():
    columns = [["model", "WideResNet-28-10"], ["ours", "95.41 ± 0.08 (n = 5)"]]
    assert [widths(columns, room) for room in (36, 30, 20, 1)] == [[16, 20], [16, 14], [13, 7], [8, 7]]
    assert wrap_text("WideResNet-28-10", 13) == ["WideResNet-", "28-10"]


def test_output_is_plain_without_a_terminal(capsys):
    show([compare(name, table, []) for name, table in PAPER.items()])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "95.41 ± 0.08" in out
    assert "…" not in out

"""A table with the paper's numbers and ours, as text."""

import pytest

from maxup.lab.report.custom_tables import other_results
from maxup.lab.report.tables import DASH, format_signed, grid, title
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

PAPER = load_paper()
BASELINE, MAXUP = "cifar10/resnet110-cutout", "cifar10/resnet110-cutout-maxup"


def loaded(root):
    return load_results(root, root / "nowhere")[0]


@pytest.mark.parametrize("name", PAPER)
def test_without_results_only_the_paper_s_numbers_are_shown(name):
    comparison = compare(name, PAPER[name], [])
    out = grid(comparison)
    assert len(out.rows) == len(PAPER[name].rows) * len(PAPER[name].metrics)
    for line, row in zip(comparison.lines, out.rows, strict=True):
        cells = dict(zip(out.headings, map(str, row), strict=True))
        value = line.row.values.get(line.metric)
        assert cells["paper"].startswith(f"{value.mean:.{PAPER[name].digits}f}" if value else DASH)
    assert "ours" not in out.headings
    assert str(PAPER[name].number) in title(comparison)


def test_corrections_are_marked_and_explained():
    out = grid(compare("table-imagenet", PAPER["table-imagenet"], []))
    cell = next(row[1] for row in out.rows if row[0].text == "ProxylessNet-CPU")
    assert "4.36M" in cell.text
    assert "7.12M" in out.notes[cell.marks[0] - 1]
    grids = [grid(compare(name, table, [])) for name, table in PAPER.items()]
    notes = " ".join(note for out in grids for note in (*out.notes, *out.remarks))
    for text in ("88.45 %", "Top-1 error", "2.5^{-4}", "ResNet-100", "923k", "The paper calls this row ADV-AWD-LSTM"):
        assert text in notes


def test_every_note_has_a_cell():
    for name, table in PAPER.items():
        out = grid(compare(name, table, []))
        marks = {mark for row in out.rows for cell in row for mark in cell.marks}
        assert marks == set(range(1, len(out.notes) + 1))


def test_an_empty_column_is_removed(tmp_path):
    write_run(tmp_path, BASELINE, 0, 0.9, stem="seed-0-budget-0.36")
    for name in (BASELINE, MAXUP):
        write_run(tmp_path, name, 0, 0.9, stem="seed-0-budget-0.3")
    headings = grid(compare("table-cifar10", PAPER["table-cifar10"], loaded(tmp_path))).headings
    assert headings[3:] == ["paper", "difference", "72 of 200 epochs", "60 of 200 epochs", "difference"]


def test_a_budget_is_a_column_and_has_a_difference_only_with_its_baseline(tmp_path):
    for name in (BASELINE, MAXUP):
        write_run(tmp_path, name, 0, 0.9)
    write_run(tmp_path, MAXUP, 9, 0.5, stem="seed-9-budget-0.3")
    out = grid(compare("table-cifar10", PAPER["table-cifar10"], loaded(tmp_path)))
    assert out.headings[-3:] == ["ours", "difference", "60 of 200 epochs"]
    assert out.rows[1][-1].text == "50.00 (n = 1)"


def test_infinite_and_huge_perplexities_are_short(tmp_path):
    for seed, perplexity in enumerate(("inf", 90.0)):
        write_run(tmp_path, "text/awd_lstm-embedding_dropout", seed, 0, test_perplexity=perplexity)
        write_run(tmp_path, "text/awd_lstm-embedding_dropout-maxup", seed, 0, test_perplexity=7e300 + seed)
    table = other_results(loaded(tmp_path), PAPER.values(), text=True)
    rows = [[cell.text for cell in row] for row in grid(compare("text", table, loaded(tmp_path))).rows]
    assert [row[-1] for row in rows] == [DASH, "inf (n = 2)", DASH, "7e+300 ± 0.00 (n = 2)"]
    assert format_signed(-7e300, 2) == "−7e+300"  # noqa: RUF001

"""Ours beside the paper's: the right runs in the right cells."""

import random

import pytest
from scipy import stats

from maxup.lab.report.custom_tables import other_results, with_other_m
from maxup.lab.report.tables import DASH, compare, grid, signed, title
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from tests.lab.report.runs import write_run

PAPER = load_paper()
TWIN, MAXUP = "cifar10/resnet110-cutout", "cifar10/resnet110-cutout-maxup"


def loaded(root):
    return load_results(root, root / "nowhere")[0]


@pytest.mark.parametrize("name", PAPER)
def test_without_results_there_are_the_paper_s_numbers_alone(name):
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


def test_every_number_of_a_note_is_in_a_cell():
    for name, table in PAPER.items():
        out = grid(compare(name, table, []))
        marks = {mark for row in out.rows for cell in row for mark in cell.marks}
        assert marks == set(range(1, len(out.notes) + 1))


def test_a_column_without_any_number_is_left_out(tmp_path):
    write_run(tmp_path, TWIN, 0, 0.9, stem="seed-0-budget-0.36")
    for name in (TWIN, MAXUP):
        write_run(tmp_path, name, 0, 0.9, stem="seed-0-budget-0.3")
    headings = grid(compare("table-cifar10", PAPER["table-cifar10"], loaded(tmp_path))).headings
    assert headings[3:] == ["paper", "difference", "72 of 200 epochs", "60 of 200 epochs", "difference"]


def test_ours_is_mean_and_deviation_and_the_interval_of_welch(tmp_path):
    rng = random.Random(0)
    twin, ours = ([rng.gauss(0.95, 0.002) for _ in range(4)] for _ in range(2))
    for seed in range(4):
        write_run(tmp_path, TWIN, seed, twin[seed])
        write_run(tmp_path, MAXUP, seed, ours[seed], recipe={"objective": {"name": "maxup"}})
    write_run(tmp_path, MAXUP, 9, 0.5, recipe={"objective": {"name": "maxup"}}, stem="seed-9-budget-0.3")
    comparison = compare("table-cifar10", PAPER["table-cifar10"], loaded(tmp_path))
    line = next(line for line in comparison.lines if line.key == "resnet110-cutout-maxup")
    percent = [100 * v for v in ours]
    assert line.ours[1.0].mean == pytest.approx(stats.tmean(percent))
    assert line.ours[1.0].std == pytest.approx(stats.tstd(percent))
    expected = stats.ttest_ind(percent, [100 * v for v in twin], equal_var=False).confidence_interval(0.95)
    assert (line.differences[1.0].low, line.differences[1.0].high) == pytest.approx(tuple(expected))
    assert comparison.budgets == [1.0, 0.3]
    assert line.ours[0.3].mean == pytest.approx(50.0)
    assert 0.3 not in line.differences  # its twin was not run at that budget
    out = grid(comparison)
    assert out.headings[-3:] == ["ours", "difference", "60 of 200 epochs"]
    assert out.rows[1][-1].text == "50.00 (n = 1)"


@pytest.mark.parametrize("seeds", [2, 5])
def test_a_seed_that_chooses_the_images_makes_pairs(tmp_path, seeds):
    rng = random.Random(1)
    twin, ours = ([rng.gauss(0.95, 0.002) for _ in range(seeds)] for _ in range(2))
    for seed in range(seeds):
        for name, value in (("digits/mlp-gaussian", twin), ("digits/mlp-gaussian-maxup", ours)):
            write_run(tmp_path, name, seed, value[seed])
    line = compare("own", other_results(loaded(tmp_path), []), loaded(tmp_path)).lines[1]
    found = line.differences[1.0]
    if seeds < 3:
        assert (found.low, found.high) == (None, None)
        return
    expected = stats.ttest_rel([100 * v for v in ours], [100 * v for v in twin]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_the_ablation_s_rows_share_a_recipe_and_differ_in_m(tmp_path):
    name = "cifar100/resnet110-cutout-maxup"
    for m, accuracy in ((4, 0.75), (10, 0.76), (20, 0.74)):
        recipe = {"objective": {"name": "maxup", "m": m}}
        write_run(tmp_path, name, 0, accuracy, recipe=recipe, stem="seed-0" if m == 4 else f"seed-0-m-{m}")
    found = loaded(tmp_path)
    ablation = {line.key: line for line in compare("table-ablation", PAPER["table-ablation"], found).lines}
    assert [ablation[f"resnet110-m{m}"].ours[1.0].mean for m in (4, 10, 20)] == pytest.approx([75, 76, 74])
    write_run(tmp_path, name, 0, 0.74, recipe={"objective": {"name": "maxup", "m": 2}}, stem="seed-0-m-2")
    table = with_other_m(PAPER["table-ablation"], loaded(tmp_path))
    small = [(key, row.m, row.ours) for key, row in table.rows.items() if row.model == "ResNet-110"]
    assert [m for _, m, _ in small] == [1, 2, 4, 10, 20]
    assert small[1] == ("resnet110-m2", 2, True)
    extra = {line.key: line for line in compare("table-ablation", table, loaded(tmp_path)).lines}["resnet110-m2"]
    assert extra.paper is None
    assert extra.ours[1.0].mean == pytest.approx(74)
    assert other_results(loaded(tmp_path), [table]) is None
    assert [row.m for row in other_results(loaded(tmp_path), [PAPER["table-ablation"]]).rows.values()] == [2]
    cifar100 = {line.key: line for line in compare("table-cifar100", PAPER["table-cifar100"], found).lines}
    assert cifar100["resnet110-cutout-maxup"].ours[1.0].mean == pytest.approx(75)


def test_perplexities_are_taken_as_they_are(tmp_path):
    write_run(tmp_path, "ptb/awd_lstm-embedding_dropout", 0, 0, test_perplexity=56.0, test_dynamic_perplexity=51.0)
    lines = {(v.key, v.metric): v for v in compare("table-ptb", PAPER["table-ptb"], loaded(tmp_path)).lines}
    assert lines["awd_lstm", "test"].ours[1.0].mean == 56.0
    assert lines["awd_lstm-dynamic", "test"].ours[1.0].mean == 51.0
    assert not lines["awd_lstm", "valid"].ours


def test_infinite_and_huge_perplexities_are_short(tmp_path):
    for seed, perplexity in enumerate(("inf", 90.0)):
        write_run(tmp_path, "text/awd_lstm-embedding_dropout", seed, 0, test_perplexity=perplexity)
        write_run(tmp_path, "text/awd_lstm-embedding_dropout-maxup", seed, 0, test_perplexity=7e300 + seed)
    table = other_results(loaded(tmp_path), PAPER.values(), text=True)
    rows = [[cell.text for cell in row] for row in grid(compare("text", table, loaded(tmp_path))).rows]
    assert [row[-1] for row in rows] == [DASH, "inf (n = 2)", DASH, "7e+300 ± 0.00 (n = 2)"]
    assert signed(-7e300, 2) == "−7e+300"  # noqa: RUF001

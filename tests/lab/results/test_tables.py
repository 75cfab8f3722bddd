"""Our results for each row of a table: the right runs, and statistics against scipy."""

import random

import pytest
from scipy import stats

from maxup.lab.report.custom_tables import other_results, with_other_m
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

PAPER = load_paper()
BASELINE, MAXUP = "cifar10/resnet110-cutout", "cifar10/resnet110-cutout-maxup"


def loaded(root):
    return load_results(root, root / "nowhere")[0]


def test_our_numbers_are_mean_deviation_and_welch_interval(tmp_path):
    rng = random.Random(0)
    baseline, ours = ([rng.gauss(0.95, 0.002) for _ in range(4)] for _ in range(2))
    for seed in range(4):
        write_run(tmp_path, BASELINE, seed, baseline[seed])
        write_run(tmp_path, MAXUP, seed, ours[seed], recipe={"objective": {"name": "maxup"}})
    write_run(tmp_path, MAXUP, 9, 0.5, recipe={"objective": {"name": "maxup"}}, stem="seed-9-budget-0.3")
    comparison = compare("table-cifar10", PAPER["table-cifar10"], loaded(tmp_path))
    line = next(line for line in comparison.lines if line.key == "resnet110-cutout-maxup")
    percent = [100 * v for v in ours]
    assert line.ours[1.0].mean == pytest.approx(stats.tmean(percent))
    assert line.ours[1.0].std == pytest.approx(stats.tstd(percent))
    expected = stats.ttest_ind(percent, [100 * v for v in baseline], equal_var=False).confidence_interval(0.95)
    assert (line.differences[1.0].low, line.differences[1.0].high) == pytest.approx(tuple(expected))
    assert comparison.budgets == [1.0, 0.3]
    assert line.ours[0.3].mean == pytest.approx(50.0)
    assert 0.3 not in line.differences  # the baseline was not run at that budget


@pytest.mark.parametrize("seeds", [2, 5])
def test_runs_are_paired_if_the_seed_selects_the_images(tmp_path, seeds):
    rng = random.Random(1)
    baseline, ours = ([rng.gauss(0.95, 0.002) for _ in range(seeds)] for _ in range(2))
    for seed in range(seeds):
        for name, value in (("digits/mlp-gaussian", baseline), ("digits/mlp-gaussian-maxup", ours)):
            write_run(tmp_path, name, seed, value[seed])
    line = compare("custom", other_results(loaded(tmp_path), []), loaded(tmp_path)).lines[1]
    found = line.differences[1.0]
    if seeds < 3:
        assert (found.low, found.high) == (None, None)
        return
    expected = stats.ttest_rel([100 * v for v in ours], [100 * v for v in baseline]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_rows_of_the_ablation_share_a_recipe_and_differ_in_m(tmp_path):
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


def test_perplexities_are_unchanged(tmp_path):
    write_run(tmp_path, "ptb/awd_lstm-embedding_dropout", 0, 0, test_perplexity=56.0, test_dynamic_perplexity=51.0)
    lines = {(v.key, v.metric): v for v in compare("table-ptb", PAPER["table-ptb"], loaded(tmp_path)).lines}
    assert lines["awd_lstm", "test"].ours[1.0].mean == 56.0
    assert lines["awd_lstm-dynamic", "test"].ours[1.0].mean == 51.0
    assert not lines["awd_lstm", "valid"].ours

"""Tables of recipes of one's own."""

import pytest

from maxup.report.own import TableError, find_table, other_results
from maxup.report.paper import load_paper
from maxup.report.results import load_results
from maxup.report.tables import compare
from tests.report.runs import write_run


def test_a_table_of_one_s_own(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits/mlp-gaussian\nepochs: 2\n")
    path = tmp_path / "table.yaml"
    path.write_text("recipes: [digits/mlp-gaussian, digits/mlp-gaussian-maxup, mine.yaml]\n")
    rows = find_table(str(path)).rows
    assert list(rows) == ["digits/mlp-gaussian", "digits/mlp-gaussian-maxup", "mine"]
    assert rows["digits/mlp-gaussian-maxup"].baseline == "digits/mlp-gaussian"
    assert [row.m for row in rows.values()] == [1, 4, 1]


@pytest.mark.parametrize(
    "text", ["", "recipes: []", "recipes: 3", "recipes: [a/b]", "recipes: [3]", "other: 1", "{", "- x", "\x00",
             "recipes: [digits/mlp-gaussian, digits/mlp-gaussian]", "recipes: [missing.yaml]"],
)  # fmt: skip
def test_a_bad_table_gives_a_sentence(tmp_path, text):
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(TableError) as caught:
        find_table(str(path))
    assert "\n" not in str(caught.value)


def test_an_unknown_table_names_the_nearest():
    with pytest.raises(TableError, match="'table-cifar10'"):
        find_table("table-cifar-10")


def test_results_outside_the_paper_have_a_table(tmp_path):
    write_run(tmp_path, "digits/mlp-gaussian-maxup", 0, 0.9, known=True)
    write_run(tmp_path, "digits/mlp-gaussian-maxup", 0, 0.9, known=True, recipe={"maxup": {"m": 8}}, stem="seed-0-m-8")
    table = other_results(load_results(tmp_path, tmp_path / "nowhere")[0], load_paper().values())
    assert [row.m for row in table.rows.values()] == [4, 8]
    assert all(line.ours for line in compare("others", table, load_results(tmp_path, tmp_path / "nowhere")[0]).lines)

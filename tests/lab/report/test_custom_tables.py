"""Custom tables of recipes."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from maxup.cli.main import main
from maxup.errors import RecipeError
from maxup.lab.experiments.jobs import make_jobs
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.report.custom_tables import find_table, other_results
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

PAPER = load_paper()


def loaded(root):
    return load_results(root, root / "nowhere")[0]


def test_a_custom_table(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits/mlp-gaussian\nepochs: 2\n")
    path = tmp_path / "table.yaml"
    path.write_text("recipes: [digits/mlp-gaussian, digits/mlp-gaussian-maxup, mine.yaml]\n")
    rows = find_table(str(path)).rows
    assert list(rows) == ["digits/mlp-gaussian", "digits/mlp-gaussian-maxup", "mine"]
    assert rows["digits/mlp-gaussian-maxup"].baseline == "digits/mlp-gaussian"
    assert [row.m for row in rows.values()] == [1, 4, 1]


def test_a_row_may_have_another_m_and_m_1_is_the_baseline(tmp_path):
    (tmp_path / "a-maxup.yaml").write_text("base: a\nobjective: {name: maxup}\n")
    (tmp_path / "a.yaml").write_text("base: digits/mlp-gaussian\n")
    path = tmp_path / "table.yaml"
    name = "digits/mlp-gaussian-maxup"
    path.write_text(
        f"recipes: [{{recipe: {name}, m: 1}}, {name}, {{recipe: {name}, m: 10}}, {{recipe: a-maxup.yaml, m: 1}}]"
    )
    table = find_table(str(path))
    assert list(table.rows) == ["digits/mlp-gaussian", name, f"{name}, m = 10", "a"]
    assert [row.m for row in table.rows.values()] == [1, 4, 10, 1]
    assert [row.baseline for row in table.rows.values()] == [None, "digits/mlp-gaussian", "digits/mlp-gaussian", None]
    jobs, missing = make_jobs(table, 1, 0.5)
    assert not missing
    assert [(job.name, job.resolved().objective["name"], job.resolved().objective.get("m")) for job in jobs] == [
        ("digits/mlp-gaussian/seed-0-budget-0.5", "standard", None), (f"{name}/seed-0-budget-0.5", "maxup", 4),
        (f"{name}/seed-0-m-10-budget-0.5", "maxup", 10), ("a/seed-0-budget-0.5", "standard", None),
    ]  # fmt: skip


def test_an_invalid_row_is_named(tmp_path):
    (tmp_path / "table.yaml").write_text("recipes: [{recipe: digits/mlp-gaussian-maxup, m: x}]")
    with pytest.raises(
        RecipeError, match=r"'m': 'x'\} is not a recipe name or a recipe with an m that is a whole number"
    ):
        find_table(str(tmp_path / "table.yaml"))


@pytest.mark.parametrize(
    "text", ["", "recipes: []", "recipes: 3", "recipes: [a/b]", "recipes: [3]", "other: 1", "{", "- x", "\x00",
             "recipes: [digits/mlp-gaussian, digits/mlp-gaussian]", "recipes: [missing.yaml]",
             "recipes: [{recipe: digits/mlp-gaussian, m: 4}]", "recipes: [{recipe: digits/mlp-gaussian-maxup, m: 0}]",
             "recipes: [{recipe: digits/mlp-gaussian-maxup}]", "recipes: [{recipe: a/b, m: 1}]",
             "recipes: [{recipe: digits/mlp-gaussian-maxup, m: 4}, digits/mlp-gaussian-maxup]",
             "recipes: [{recipe: digits/mlp-gaussian-maxup, m: 2, seed: 3}]"],
)  # fmt: skip
def test_an_invalid_table_gives_a_message(tmp_path, text):
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        find_table(str(path))
    assert "\n" not in str(caught.value)


def test_an_unknown_table_lists_the_known_ones():
    with pytest.raises(RecipeError, match=re.escape(", ".join(PAPER))):
        find_table("table-cifar-10")


def test_results_outside_the_paper_have_a_table(tmp_path):
    write_run(tmp_path, "digits/mlp-gaussian-maxup", 0, 0.9, known=True)
    write_run(
        tmp_path,
        "digits/mlp-gaussian-maxup",
        0,
        0.9,
        known=True,
        recipe={"objective": {"name": "maxup", "m": 8}},
        stem="seed-0-m-8",
    )
    table = other_results(loaded(tmp_path), PAPER.values())
    assert [row.m for row in table.rows.values()] == [4, 8]
    assert all(line.ours for line in compare("others", table, loaded(tmp_path)).lines)


def test_recipes_on_text_are_shown_in_perplexities(tmp_path, capsys):
    from maxup.lab.report.listing import listing

    folder = tmp_path / "runs" / "text" / "awd_lstm-embedding_dropout" / "seed-0"
    folder.mkdir(parents=True)
    last = {"epoch": 6, "validation_perplexity": 61.5, "test_perplexity": 77.25}
    recipe = asdict(parse_recipe("text/awd_lstm-embedding_dropout", []))
    run = {"recipe": recipe, "seed": 0, "last": last, "seconds": 30.0, "environment": {}}
    (folder / "run.json").write_text(json.dumps(run))
    records = [{"step": 10 * e, "epoch": e, "validation_perplexity": 90.0 - e} for e in range(1, 7)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    places["results"].mkdir()
    folders = {**places, "out": tmp_path / "out"}
    assert main(["report", *(word for name, path in folders.items() for word in (f"--{name}", str(path)))]) == 0
    printed = capsys.readouterr().out
    assert "is skipped" not in printed
    assert "77.25 (n = 1)" in printed
    assert "61.50 (n = 1)" in printed
    assert (tmp_path / "out" / "your-text-runs-curves-text_awd_lstm.png").exists()  # of validation, by epoch
    (entry,) = listing("text/awd_lstm-embedding_dropout", **places).recipes[:1]
    assert entry.ours == "77.25 perplexity (n = 1)"


def test_your_text_recipe_is_shown_in_perplexities(tmp_path):
    """Its runs say so: the recipe file itself may be anywhere."""
    path = write_run(tmp_path, "mine", 0, 0.9)
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"last": {"epoch": 1, "validation_perplexity": 61.5, "test_perplexity": 77.25}}))
    table = other_results(loaded(tmp_path), PAPER.values(), text=True)
    values = [line.values for line in compare("yours", table, loaded(tmp_path)).lines]
    assert values == [{1.0: {0: 61.5}}, {1.0: {0: 77.25}}]


def test_a_variant_is_compared_with_the_same_variant_of_the_baseline(tmp_path):
    for seed in range(3):
        for name, accuracy in (("digits/mlp-gaussian", 0.8), ("digits/mlp-gaussian-maxup", 0.9)):
            lr = {"optim": {"lr": 0.01}}
            write_run(tmp_path, name, seed, accuracy + seed / 100, known=True, recipe=lr)
            write_run(tmp_path, name, seed, 0.1, known=True, recipe={"optim": {"lr": 0.02}}, stem=f"seed-{seed}-m-1")
    table = other_results(loaded(tmp_path), PAPER.values())
    lines = compare("yours", table, loaded(tmp_path)).lines
    found = {line.key: line.differences[1.0].mean for line in lines if 1.0 in line.differences}
    names = [f"digits/mlp-gaussian-maxup (optim.lr {lr})" for lr in (0.01, 0.02)]
    assert found == {names[0]: pytest.approx(10.0), names[1]: pytest.approx(0.0)}


@pytest.mark.parametrize("verb", ["report", "reproduce"])
def test_aliases_in_a_table_are_rejected_before_they_expand(tmp_path, monkeypatch, capsys, verb):
    """Nine levels of nine are 387 million values in 400 bytes."""
    monkeypatch.chdir(tmp_path)
    levels = [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    (tmp_path / "table.yaml").write_text(f"recipes: [&a0 [x], {', '.join(levels)}]")
    (tmp_path / "results" / "runs").mkdir(parents=True)
    assert main([verb, "table.yaml"]) == 1
    message = f"maxup {verb}: table.yaml: line 1 uses the alias *a0; write out what it stands for\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("kind", ["pipe", "hole", "tag"])
def test_a_table_that_is_not_a_regular_file_or_has_an_unknown_tag(kind, tmp_path):
    path = tmp_path / "table.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("recipes: !!bool 3\n")
        if kind == "hole":
            os.truncate(path, 1 << 40)
    with pytest.raises(RecipeError, match=r"^\S+table.yaml cannot be read as YAML: [^\n]+$"):
        find_table(str(path))


@pytest.mark.parametrize("verb", ["report", "reproduce"])
def test_a_table_with_too_many_recipes_is_rejected_before_one_is_read(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("maxup.lab.report.custom_tables.parse_recipe", lambda *_: pytest.fail("a recipe was read"))
    Path("runs").mkdir()
    (tmp_path / "table.yaml").write_text(f"recipes: [{', '.join(f'a{i}' for i in range(101))}]")
    assert main([verb, "table.yaml", *(["--results", "runs"] if verb == "report" else [])]) == 1
    assert capsys.readouterr().err == f"maxup {verb}: table.yaml: recipes has 101 values; the limit is 100\n"

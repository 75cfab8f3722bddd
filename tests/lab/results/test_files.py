"""The recipe, seed, m and budget of a result; and which files are skipped, with a message."""

import json
import math

import pytest

from maxup.lab.results.files import budget_name, file_name, load_results, mean_seconds
from maxup.lab.storage.atomic_io import write_json
from tests.lab.report.runs import write_run

BASELINE, MAXUP = "digits/mlp-gaussian", "digits/mlp-gaussian-maxup"


def test_results_of_a_known_recipe(tmp_path):
    write_run(tmp_path, BASELINE, 0, 0.9, known=True)
    write_run(tmp_path, MAXUP, 0, 0.9, known=True, recipe={"epochs": 18}, stem=file_name(0, budget=0.3))
    write_run(
        tmp_path, MAXUP, 1, 0.9, known=True, recipe={"objective": {"name": "maxup", "m": 10}}, stem=file_name(1, m=10)
    )
    write_run(tmp_path, MAXUP, 2, 0.9, known=True, recipe={"epochs": 7})  # no budget in the name
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert not notes
    seen = [(r.recipe, r.seed, r.m, r.default_m, r.budget) for r in found]
    assert seen == [
        (BASELINE, 0, 1, True, 1.0), (MAXUP, 0, 4, True, 0.3), (MAXUP, 1, 10, False, 1.0), (MAXUP, 2, 4, True, 0.117),
    ]  # fmt: skip


def test_results_of_an_unknown_recipe_use_their_file_names(tmp_path):
    write_run(tmp_path, "a/b", 0, 0.9, recipe={"objective": {"name": "maxup", "m": 10}}, stem="seed-0-m-10-budget-0.3")
    write_run(tmp_path, "a/b", 0, 0.9)
    found, _ = load_results(tmp_path, tmp_path / "nowhere")
    assert [(r.m, r.default_m, r.budget) for r in found] == [(1, True, 1.0), (10, False, 0.3)]


def test_a_run_and_its_result_file_count_once_and_keep_the_curve(tmp_path):
    write_run(tmp_path / "results", BASELINE, 0, 0.9, known=True)
    write_run(tmp_path / "runs", BASELINE, 0, 0.9, known=True, curve="")
    write_run(tmp_path / "runs", BASELINE, 1, 0.8, known=True, curve="")
    found, _ = load_results(tmp_path / "results", tmp_path / "runs")
    assert [(r.seed, r.curve is not None) for r in found] == [(0, True), (1, True)]


def test_the_time_of_a_run_on_a_shared_gpu_does_not_count(tmp_path):
    write_run(tmp_path, BASELINE, 0, 0.9, known=True, shared=True)
    write_run(tmp_path, BASELINE, 1, 0.9, known=True, training_seconds=7)
    found, _ = load_results(tmp_path, tmp_path / "nowhere")
    assert [r.seconds for r in found] == [None, 7.0]
    assert mean_seconds(found) == 7.0
    assert mean_seconds(found[:1]) is None


def test_a_run_with_an_infinite_loss_is_a_result(tmp_path):
    path = tmp_path / BASELINE / "seed-0.json"
    write_run(tmp_path, BASELINE, 0, 0.1, known=True, recipe={"objective": {"name": "adversarial", "p": math.inf}})
    run = json.loads(path.read_text())
    write_json(path, run | {"last": run["last"] | {"test_loss": math.inf}})
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"base: {BASELINE}\nobjective: {{name: adversarial, p: .inf}}\n")
    found, notes = load_results(tmp_path, tmp_path / "nowhere", {BASELINE: str(recipe)})
    assert not notes
    assert (found[0].last["test_loss"], found[0].last["test_accuracy"]) == (math.inf, 0.1)


def test_runs_of_a_comparison_are_ignored(tmp_path):
    write_run(tmp_path, f"compare/{MAXUP}/runs/m-4", 0, 0.9, curve="")
    write_run(tmp_path, BASELINE, 0, 0.9, known=True, curve="")
    found, notes = load_results(tmp_path / "nowhere", tmp_path)
    assert [r.recipe for r in found] == [BASELINE]
    assert not notes


def test_a_run_with_other_settings_has_a_name_of_its_own(tmp_path):
    write_run(tmp_path, BASELINE, 0, 0.9, known=True, recipe={"optim": {"lr": 9.0}})
    write_run(tmp_path, BASELINE, 1, 0.9, known=True, recipe={"data": {"root": "/somewhere"}})
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert [(r.recipe, r.seed, r.name) for r in found] == [
        (BASELINE, 1, BASELINE), (f"{BASELINE} (optim.lr 9.0)", 0, BASELINE)
    ]  # fmt: skip
    assert not notes


def test_settings_without_an_effect_on_the_result_do_not_separate_runs(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, BASELINE, seed, 0.9, known=True, recipe={"data": {"workers": seed}})
    found, _ = load_results(tmp_path, tmp_path / "nowhere")
    assert [(r.recipe, r.seed) for r in found] == [(BASELINE, 0), (BASELINE, 1)]


def test_runs_of_a_recipe_in_a_folder_of_another_name(tmp_path):
    """They are compared with the recipe that was trained, and are averaged only if they have the same settings."""
    known = {"known": True, "of": BASELINE}
    for seed, changes in enumerate(({}, {"epochs": 3}, {"optim": {"lr": 9.0}})):
        add(write_run(tmp_path, "three", seed, 0.9, recipe=changes, **known), recipe_name=BASELINE)
        add(write_run(tmp_path, "alike", seed, 0.9, recipe={"optim": {"lr": 9.0}}, **known), recipe_name=BASELINE)
        add(write_run(tmp_path, "elsewhere", seed, 0.9, recipe=changes, **known), recipe_name="/etc/recipe.yaml")
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert not notes
    assert [(r.recipe, r.seed, r.variant) for r in found] == [
        *(("alike", seed, "optim.lr 9.0") for seed in range(3)),
        *(("elsewhere", seed, "") for seed in range(3)),
        ("three", 0, ""), ("three", 1, ""), ("three (optim.lr 9.0)", 2, "optim.lr 9.0"),
    ]  # fmt: skip
    assert [r.budget for r in found if r.recipe == "three"] == [1, 0.05]


def test_a_report_names_runs_after_the_recipe_that_was_trained(tmp_path):
    known = {"known": True, "of": BASELINE, "curve": ""}
    write_run(tmp_path, BASELINE, 0, 0.9, curve="")
    for folder, seed, changes in (("repeat-1", 1, {}), ("m8-1", 2, {"optim": {"lr": 9.0}}), ("again", 0, {})):
        add(write_run(tmp_path, folder, seed, 0.9, recipe=changes, **known), recipe_name=BASELINE)
    add(write_run(tmp_path, "short", 1, 0.9, recipe={"epochs": 3}, **known), recipe_name=BASELINE)
    found, notes = load_results(tmp_path / "nowhere", tmp_path, by_recipe=True)
    assert {(r.recipe, r.seed, r.budget) for r in found} == {
        (BASELINE, 0, 1), (BASELINE, 1, 1), (BASELINE, 1, 0.05), (f"{BASELINE} (optim.lr 9.0)", 2, 1),
    }  # fmt: skip
    (note,) = notes
    assert "is skipped: another result has the same recipe, seed, m and budget" in note


def test_a_run_with_another_objective_is_described_by_its_name(tmp_path):
    """Not by every argument that the other objective does not have."""
    write_run(tmp_path, MAXUP, 0, 0.9, known=True, recipe={"objective": "standard", "optim": {"lr": 9.0}})
    found, _ = load_results(tmp_path, tmp_path / "nowhere")
    assert [r.variant for r in found] == ["objective.name 'standard', optim.lr 9.0"]


def add(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def add_code(path, **names):
    add(path, task=names)


def test_a_run_on_user_data_has_a_name_of_its_own_only_beside_others(tmp_path):
    """Runs with and without your code are never averaged."""
    add_code(write_run(tmp_path, BASELINE, 0, 0.9, known=True), model_from="", data_from="mine:data", data="digest")
    write_run(tmp_path, BASELINE, 1, 0.9, known=True)
    for seed in (0, 1):
        add_code(write_run(tmp_path, "mine", seed, 0.9), data_from="mine:data")
        add_code(write_run(tmp_path, "two", seed, 0.9), data_from=f"mine:data_{seed}")
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert [(r.recipe, r.seed) for r in found] == [
        (BASELINE, 1), (f"{BASELINE} (--data_from mine:data)", 0), ("mine", 0), ("mine", 1),
        ("two (--data_from mine:data_0)", 0), ("two (--data_from mine:data_1)", 1),
    ]  # fmt: skip
    assert not notes


@pytest.mark.parametrize(
    ("recipe", "name"), [("images/resnet18-cutmix", "imagefolder"), ("text/awd_lstm-embedding_dropout", "text")]
)
def test_runs_on_different_folders_have_different_names(tmp_path, recipe, name):
    """They are never averaged. For a data set of the literature, the folder says nothing."""
    for seed, root in enumerate(("photos", "other")):
        settings = {"data": {"name": name, "root": root, **({"size": 128} if name == "imagefolder" else {})}}
        write_run(tmp_path, recipe, seed, 0.9, known=True, recipe=settings)
    write_run(tmp_path, "cifar10/resnet110-cutout", 0, 0.9, known=True, recipe={"data": {"root": "d"}})
    found, _ = load_results(tmp_path, tmp_path / "nowhere")
    assert [r.recipe for r in found] == [
        "cifar10/resnet110-cutout", f"{recipe} (data.root 'other')", f"{recipe} (data.root 'photos')"
    ]  # fmt: skip


def test_a_run_that_was_set_aside_is_ignored(tmp_path):
    write_run(tmp_path, BASELINE, 0, 0.9, known=True, curve="")
    write_run(tmp_path, BASELINE, 0, 0.8, known=True, curve="", stem="seed-0-old-1")
    (one,), notes = load_results(tmp_path / "nowhere", tmp_path)
    assert (one.last["test_accuracy"], notes) == (0.9, [])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"recipe": 3}', "[" * 100_000, '{"a": NaN}', "\x00", '{"seed": 0, "seed": 0}']
)
def test_a_corrupt_file_is_skipped_with_a_message(tmp_path, text):
    write_run(tmp_path, BASELINE, 0, 0.9, known=True)
    (tmp_path / BASELINE / "seed-1.json").write_text(text)
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert [r.seed for r in found] == [0]
    assert len(notes) == 1
    assert "\n" not in notes[0]


def test_wrong_types_are_skipped(tmp_path):
    path = write_run(tmp_path, BASELINE, 0, 0.9)
    run = json.loads(path.read_text())
    changes = [{"objective": {"name": 3}}, {"epochs": "x"}, {"objective": {"name": "maxup", "m": None}}]
    for i, change in enumerate(changes):
        (path.parent / f"seed-{i}.json").write_text(json.dumps(run | {"recipe": run["recipe"] | change}))
    found, notes = load_results(tmp_path, tmp_path / "nowhere")
    assert not found
    assert len(notes) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training_seconds": "nan"}, "nan seconds"),
        ({"training_seconds": -1}, "-1 seconds"),
        ({"seconds": 1e308}, "1e+308 seconds"),
        ({"last": {"test_accuracy": 7e300}}, "test_accuracy is 7e+300"),
        ({"last": {"certified_accuracy_0.25": "nan"}}, "certified_accuracy_0.25 is nan"),
        ({"certified": {"n": 100}}, "its certification settings are incomplete"),
        ({"certified": {"n": 0, "alpha": 1, "sigma": 1, "adaptive": False}}, "k=0, n=0, alpha=1"),
        ({"last": {"test_perplexity": "nan"}}, "test_perplexity is nan"),
        ({"last": {"test_loss": 10**400}}, "too large"),
        ({"seed": 7}, "the file name says seed 0, but the content says seed 7"),
    ],
)
def test_impossible_values_are_skipped(tmp_path, change, message):
    path = write_run(tmp_path, BASELINE, 0, 0.9, known=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found, (note,) = load_results(tmp_path, tmp_path / "nowhere")
    assert not found
    assert "seed-0.json is skipped: " in note
    assert message in note


def test_a_second_result_with_the_same_seed_is_skipped(tmp_path):
    write_run(tmp_path / "results", BASELINE, 0, 0.9, known=True)
    write_run(tmp_path / "runs", BASELINE, 0, 0.8, known=True, curve="")
    (one,), (note,) = load_results(tmp_path / "results", tmp_path / "runs")
    assert (one.last["test_accuracy"], one.curve) == (0.9, None)
    assert "run.json is skipped: another result has the same recipe, seed, m and budget" in note


def test_a_budget_is_named_in_epochs_if_all_recipes_have_as_many():
    assert budget_name(0.3, [BASELINE, MAXUP]) == "18 of 60 epochs"
    assert budget_name(0.3, [BASELINE, "cifar10/resnet110-cutout"]) == "30 % of the epochs"
    assert budget_name(1 / 12, [BASELINE, "cifar10/resnet110-cutout"]) == "8.33 % of the epochs"
    assert budget_name(2, [BASELINE]) == "200 % of the epochs"

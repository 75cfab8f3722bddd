import json

import pytest
import torch

from maxup.lab.experiments import compare as module
from maxup.lab.experiments.compare import Attack, compare, run_once
from maxup.lab.recipes.load import recipe_from
from tests.lab.train.test_loop import RECIPE


def test_the_time_of_a_run_is_without_compiling(tmp_path):
    recipe = recipe_from(RECIPE | {"epochs": 1})
    run_once(recipe, tmp_path, Attack(0.1, steps=1))
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"training_seconds": 10.0, "compile_seconds": 4.0}))
    assert run_once(recipe, tmp_path, Attack(0.1, steps=1))[0]["seconds"] == 6
    del record["compile_seconds"]  # as an older version wrote it
    (tmp_path / "run.json").write_text(json.dumps(record | {"training_seconds": 10.0}))
    assert run_once(recipe, tmp_path, Attack(0.1, steps=1))[0]["seconds"] == 10


@pytest.mark.parametrize(
    ("said", "test_set", "paired"),
    [({}, True, False), ({}, False, True), ({"validation": 0.2}, True, True), ({"train_size": 20}, True, True)],
)
def test_differences_are_paired_if_the_seed_selects_the_training_examples(
    said, test_set, paired, tmp_path, monkeypatch
):
    x, y = torch.arange(120.0).view(60, 2), torch.arange(60) % 3
    values = iter([50.0, 60.0, 70.0, 81.0, 60.0, 73.0])  # of m = 1 and m = 2 for each seed
    monkeypatch.setattr(module, "run_once", lambda *args, **options: ({"clean": next(values), "seconds": 1.0}, {}))
    result = compare(
        recipe_from(RECIPE | {"data": {"train_size": None} | said}), tmp_path, seeds=3, ms=[2], objectives=[],
        attack=Attack(0.1), equal_time=False, say=lambda line: None,
        data_from=lambda: (x, y, x, y) if test_set else (x, y),
    )  # fmt: skip
    assert result["paired"] == paired
    row = result["summary"]["clean"]["m = 2"]
    assert row["difference"] == pytest.approx(34 / 3)
    assert (row["low"] > 0) == paired  # the seeds differ by more than the rows

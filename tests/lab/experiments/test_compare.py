import json

from maxup.lab.experiments.compare import Attack, run_once
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

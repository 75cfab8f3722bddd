"""Runs of the published tables, chosen at random once, have the same metrics when they are repeated."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest

from maxup.lab.experiments.compare import Attack, Measurement, rows, run_once
from maxup.lab.recipes.load import recipe_from
from maxup.lab.results.comparison import TIME_OF

RESULTS = Path(__file__).parent.parent.parent.parent / "results"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "row", "seed"),
    [
        ("digits-lr/0.2", "m = 1", 7),
        ("digits-shortlist/exact-8", "m = 1, time of m = 8", 12),
        ("digits-certified", "m = 5", 2),
        ("digits-cause", "easiest of 4", 3),
    ],
)
def test_a_published_run_can_be_repeated(file, row, seed, tmp_path):
    found = json.loads((RESULTS / f"{file}.json").read_text())
    recipe, attack = recipe_from(found["recipe"]), Attack(**found["attack"])
    (run,) = (one for one in found["runs"][row] if one["seed"] == seed)
    planned = rows(recipe, [4, 5, 8], ["easiest"], attack)[row.partition(TIME_OF)[0]]
    again, _ = run_once(replace(planned, seed=seed, epochs=run["epochs"]), tmp_path / "run", Measurement(attack))
    for metric in ("clean", "worst", "attacked", "gradient"):  # up to rounding on other processors
        spread = stdev(one[metric] for one in found["runs"][row])
        assert again[metric] == pytest.approx(run[metric], abs=spread / 2), metric

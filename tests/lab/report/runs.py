"""Write result files for tests, in the format of real runs."""

import json
import re
from dataclasses import asdict

from maxup.lab.recipes.load import list_recipes, parse_recipe
from maxup.lab.recipes.schema import Recipe
from maxup.lab.results.files import scale_epochs

ENVIRONMENT = {"commit": "0" * 40 + "+", "versions": {"torch": "2.13"}, "hardware": "a <b>CPU</b>", "threads": 1}


def write_run(
    root, name, seed, accuracy, *,
    stem=None, curve=None, known=False, of=None, recipe=None, seconds=60.0, training_seconds=None, shared=False, **last,
):  # fmt: skip
    """Write a result file, or the folder of a run if there is a curve. `of` is its recipe, if that is not `name`."""
    used = asdict(parse_recipe(of or name, []) if known or name in list_recipes() else Recipe()) | {"seed": seed}
    if match := re.search(r"-budget-([\d.]+)", stem or ""):
        used["epochs"] = scale_epochs(used["epochs"], float(match[1]))
    for key, value in (recipe or {}).items():
        used[key] = used[key] | value if isinstance(value, dict) else value
    run = {
        "recipe": used, "seed": seed, "last": {"epoch": 1, "test_accuracy": accuracy, **last}, "best": {}, "steps": 1,
        "seconds": seconds, "processes": 1,
        "environment": ENVIRONMENT | {"shared_gpu": shared},
    }  # fmt: skip
    if training_seconds is not None:
        run["training_seconds"] = training_seconds
    stem = stem or f"seed-{seed}"
    path = root / name / f"{stem}.json" if curve is None else root / name / stem / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run))
    if curve is not None:
        (path.parent / "metrics.jsonl").write_text(curve)
    return path

"""Recipes that version 0.1 recorded are read as today's."""

import pytest

from maxup.lab.recipes.load import parse_recipe, recipe_from
from maxup.lab.recipes.upgrade import upgrade_recipe

OLD = {
    "maxup": {
        "m": 10, "warmup": 2, "norm": "running", "strategy": "recompute", "chunk": 5, "masks": "shared", "rank": "kl",
        "unit": "column",
    },
    "adversarial": {"radius": 0.3, "p": 2, "steps": 7},
    "smoothadv": {"radius": 0.3, "attack": "ddn", "steps": 4, "samples": 2, "warmup": 3},
    "hard_fraction": 0.5,
    "model": {"name": "mlp", "args": {}, "normalise": True},
}  # fmt: skip
NEW = {
    "standard": {},
    "maxup": {
        "m": 10, "warmup": 2, "norm": "running", "strategy": "recompute", "chunk_size": 5, "masks": "shared",
        "score": "kl", "unit": "column",
    },
    "average": {"m": 10, "warmup": 2},
    "adversarial": {"radius": 0.3, "p": 2, "steps": 7},
    "hard_examples": {"keep": 0.5},
    "smoothadv": {"radius": 0.3, "attack": "ddn", "steps": 4, "samples": 2, "warmup": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", NEW)
def test_sections_become_arguments(name):
    found = recipe_from(OLD | {"objective": name})
    assert found.objective == {"name": name} | NEW[name]
    assert found.model.normalize


def test_a_recipe_of_today_stays_as_it_is():
    today = {"objective": {"name": "maxup", "m": 4}, "model": {"normalize": True}, "seed": 3}
    assert upgrade_recipe(today) == today


@pytest.mark.parametrize("broken", [{"objective": 3, "maxup": {}}, {"objective": "maxup", "maxup": [1]}])
def test_what_makes_no_sense_is_refused_as_a_recipe(broken):
    with pytest.raises(ValueError, match="objective"):
        recipe_from(broken)


def test_a_file_in_the_old_form_is_told_the_new_one(tmp_path):
    (tmp_path / "old.yaml").write_text("base: digits/mlp-gaussian\nobjective: maxup\nmaxup: {m: 4}\n")
    with pytest.raises(ValueError, match=r"'maxup' is an old setting; write objective: \{name: \.\.\., arguments\}"):
        parse_recipe(str(tmp_path / "old.yaml"), [])

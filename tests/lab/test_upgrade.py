import pytest

from maxup.lab.upgrade import upgrade_recipe

OLD = {
    "maxup": {"m": 8, "warmup": 0, "chunk": 2, "rank": "kl"},
    "adversarial": {"radius": 0.3, "p": "inf"},
    "smoothadv": {"radius": 1.0, "samples": 2},
    "hard_fraction": 0.5,
}
OBJECTIVES = {
    "standard": {},
    "maxup": {"m": 8, "warmup": 0, "chunk_size": 2, "score": "kl"},
    "average": {"m": 8, "warmup": 0},
    "adversarial": {"radius": 0.3, "p": "inf"},
    "smoothadv": {"radius": 1.0, "samples": 2},
    "hard_examples": {"keep": 0.5},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_takes_the_arguments_of_its_old_section(name):
    recipe = {"objective": name, **OLD, "seed": 3}
    assert upgrade_recipe(recipe) == {"objective": {"name": name, **OBJECTIVES[name]}, "seed": 3}
    assert recipe == {"objective": name, **OLD, "seed": 3}  # unchanged


def test_without_an_objective_it_is_standard():
    assert upgrade_recipe({"maxup": {"m": 8}}) == {"objective": {"name": "standard"}}


def test_a_current_recipe_is_unchanged():
    recipe = {"objective": {"name": "maxup", "m": 4}, "model": {"name": "mlp", "normalize": True}, "epochs": 2}
    assert upgrade_recipe(recipe) == recipe
    assert upgrade_recipe(upgrade_recipe({"objective": "maxup", **OLD})) == upgrade_recipe(
        {"objective": "maxup", **OLD}
    )


@pytest.mark.parametrize("value", [None, 3, [], "x", {"m": []}])
def test_invalid_values_are_left_to_the_reader_s_checks(value):
    for key in ("objective", "maxup", "model", "hard_fraction"):
        assert isinstance(upgrade_recipe({"objective": "maxup", key: value}), dict)

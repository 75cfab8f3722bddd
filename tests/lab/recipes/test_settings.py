"""The list of settings against the schema, the signatures, and the page in docs/."""

import inspect
import math
import runpy
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from maxup.lab.recipes.build import FROM_DATA, NOT_IN_RECIPES
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.lab.recipes.schema import Recipe, flat
from maxup.lab.recipes.settings import help_text, objectives, perturbations, sections
from maxup.lab.registry import PERTURBATIONS, get_parameters

PAGE = Path(__file__).parents[3] / "docs/settings.md"


def groups():
    return [*sections(), *objectives(), *perturbations()]


def test_every_setting_is_listed_once_with_its_default():
    listed = [setting for section in sections() for setting in section.settings]
    expected = flat(asdict(Recipe()))
    expected["objective"] = {"name": expected.pop("objective.name")}
    assert sorted(setting.name for setting in listed) == sorted(expected)
    assert {setting.name: yaml.safe_load(f"[{setting.default}]")[0] for setting in listed} == expected | {
        "precision": False  # YAML reads no as false
    }


@pytest.mark.parametrize("group", objectives(), ids=lambda group: group.name)
def test_every_argument_of_an_objective_is_listed_with_its_default(group):
    expected = {f"objective.{key}": one.default for key, one in arguments_of(group.name).items()}
    assert {one.name: yaml.safe_load(one.default) for one in group.settings} == expected


@pytest.mark.parametrize("group", perturbations(), ids=lambda group: group.name)
def test_every_argument_of_a_perturbation_is_listed_with_its_default(group):
    expected = {}
    for key, parameter in get_parameters(PERTURBATIONS, "perturbation", group.name).items():
        required = parameter.default is inspect.Parameter.empty
        expected[key] = "from the data" if key in FROM_DATA else "required" if required else parameter.default
    listed = {one.name: yaml.safe_load(one.default) for one in group.settings}
    assert listed == {key: value for key, value in expected.items() if key not in NOT_IN_RECIPES}


def test_every_name_is_listed():
    assert [group.name for group in objectives()] == list(OBJECTIVES)
    assert [group.name for group in perturbations()] == list(PERTURBATIONS)


def test_every_description_is_one_short_text():
    for group in groups():
        assert group.description.endswith("."), group.name
        for setting in group.settings:
            assert setting.description.endswith("."), setting
            assert len(setting.description) < 160, setting
            assert "\n" not in setting.description, setting
            assert "Hashable" not in setting.type, setting


def test_a_choice_is_valid_and_others_are_not():
    choices = [(s.name, s.type.replace(" or ", ", ").split(", ")) for s in sections()[4].settings if ", " in s.type]
    assert choices[0] == ("optim.name", ["sgd", "adamw", "asgd"])
    for name, values in choices:
        for value in values:
            assert flat(asdict(recipe_from({"optim": {name.partition(".")[2]: value}})))[name] == value


def test_the_help_fits_80_columns_and_lists_everything():
    text = help_text()
    assert max(map(len, text.splitlines())) <= 80
    for section in sections():
        assert f"\n{section.name}:\n" in text
        assert all(f"--{setting.name} " in text for setting in section.settings)
    for group in objectives():
        assert f"\n  {group.name}: " in text
        assert all(f"--{setting.name} " in text for setting in group.settings)
    for group in perturbations():
        part = text.partition(f"\n  {group.name}: ")[2].partition("\n\n")[0]
        assert all(setting.name in part for setting in group.settings)


def test_infinity_is_written_as_in_yaml():
    (ball,) = (group for group in perturbations() if group.name == "uniform_ball")
    assert ".inf" in next(one.description for one in ball.settings if one.name == "p")
    assert yaml.safe_load(".inf") == math.inf


def test_the_page_in_docs_is_up_to_date():
    """After a change: python docs/settings_page.py > docs/settings.md."""
    markdown = runpy.run_path(str(PAGE.with_name("settings_page.py")))["markdown"]
    assert PAGE.read_text(encoding="utf-8") == markdown()

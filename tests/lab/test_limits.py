"""One table of ranges, whichever way a number comes in."""

from dataclasses import asdict, fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

import maxup as mu
from maxup.cli.main import main
from maxup.errors import RecipeError
from maxup.lab.limits import MODEL, OPTIONS, RECIPE
from maxup.lab.models import create_model
from maxup.lab.recipes.load import flat, parse_recipe, recipe_from
from maxup.lab.recipes.schema import Recipe
from maxup.lab.registry import LANGUAGE_MODELS, MODELS, takes

NAME = "digits/mlp-gaussian-maxup"
ARGUMENTS = {"compare": [NAME, "--seeds", "2"], "train": [NAME], "reproduce": ["table-cifar10"]}


def numeric(schema=Recipe, prefix=""):
    """The dotted names of all settings that are numbers, or lists of them."""
    hints = get_type_hints(schema)
    for field in fields(schema):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from numeric(hint, f"{field.name}.")
        elif {int, float, list[float]} & {hint, *get_args(hint)}:
            yield prefix + field.name


def call(*words):
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


def test_the_table_has_every_number_of_a_recipe_and_nothing_else():
    assert sorted(numeric()) == sorted([*RECIPE, "adversarial.p"])  # which is 2 or infinity
    defaults = flat(asdict(Recipe()))
    for name, limit in RECIPE.items():
        default = defaults[name]
        assert all(one in limit for one in (default if isinstance(default, list) else [default]) if one is not None)


def test_the_table_has_every_number_of_a_network():
    known = set()
    for registry in (MODELS, LANGUAGE_MODELS):
        for name in registry:
            known |= set(takes(registry, "model", name)) - {"shape", "classes", "words"}
    assert known <= set(MODEL)


@pytest.mark.parametrize("name", RECIPE)
@pytest.mark.parametrize("value", [10**30, ".nan"])
def test_a_recipe_cannot_leave_the_table(name, value, tmp_path):
    section, _, key = name.rpartition(".")
    value = f"[{value}]" if name in ("data.mean", "data.std", "optim.milestones") else value
    said = f"{section}: {{{key}: {value}}}" if section else f"{key}: {value}"
    (tmp_path / "a.yaml").write_text(f"base: {NAME}\n{said}\n")
    words = [f"--{name}={value}"]
    for path, overrides in ((str(tmp_path / "a.yaml"), []), (NAME, words)):
        with pytest.raises(RecipeError, match=r"must be|is not known"):
            parse_recipe(path, overrides, ["adversarial", "hard_examples", "smoothadv"])


@pytest.mark.parametrize("value", ["1", "-1", "3", ".nan", "1" + "0" * 30])
def test_a_norm_is_2_or_infinity(value):
    with pytest.raises(RecipeError, match=r"^adversarial\.p=[^;]* is not known; it must be 2 or \.inf$"):
        parse_recipe(NAME, [f"--objective.p={value}"], ["adversarial"])


def test_a_recorded_recipe_cannot_leave_the_table():
    said = asdict(parse_recipe(NAME, []))
    said["maxup"]["m"] = 10**9
    with pytest.raises(RecipeError, match=r"maxup\.m=1000000000 is out of range; it must be a whole number from 1 to"):
        recipe_from(said)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("value", ["1" + "0" * 30, "9" * 5000, "nan", "-1", "1e999"])
def test_no_option_leaves_the_table(option, value, capsys, monkeypatch, tmp_path):
    verb, flag = option.split()
    monkeypatch.chdir(tmp_path)
    if flag == "--save_every" and (value.isdecimal() or value == "1e999"):
        return  # any number of seconds
    assert call(verb, *ARGUMENTS.get(verb, ["nowhere"]), f"{flag}={value}") == 2
    said = capsys.readouterr().err
    assert f"maxup {verb}: error: argument {flag}: " in said
    assert len(said) < 3000
    assert not list(tmp_path.iterdir())


def test_an_option_takes_no_more_than_a_hundred_values(capsys):
    assert call("compare", NAME, "--seeds", "2", "--m", *["2"] * 101) == 2
    assert call("certify", "nowhere", "--radii", *["0.5"] * 101) == 2
    assert capsys.readouterr().err.count("has 101 values; give 100 at most") == 2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("resnet20", {"depth": 10**6 + 2}), ("resnet20", {"depth": True}), ("conv", {"dropout": float("nan")}),
     ("conv", {"width": 10**5}), ("mlp", {"hidden": [8] * 101}), ("mlp", {"hidden": 8}), ("mlp", {"hidden": [10**12]}),
     ("wrn16_4", {"width": 10**4}), ("mlp", {"hidden": [10**5] * 3})],
)  # fmt: skip
def test_networks_beyond_the_table_are_refused_before_they_take_memory(name, arguments):
    with pytest.raises(ValueError, match=r"is out of range; it must be|must be a list|more than 1\.00 G") as error:
        create_model(name, shape=(3, 32, 32), num_classes=10, **arguments)
    assert "\n" not in str(error.value)


def test_the_library_takes_any_m():
    assert mu.MaxUp(mu.Gaussian(0.1), m=10**9).m == 10**9

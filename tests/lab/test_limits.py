"""Every number has a range, in a recipe, on the command line and in a record."""

from dataclasses import asdict, fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

import maxup as mu
from maxup.cli.main import main
from maxup.errors import RecipeError
from maxup.lab.limits import OPTIONS, find_limit
from maxup.lab.models import create_model
from maxup.lab.recipes.load import flat, parse_recipe, recipe_from
from maxup.lab.recipes.schema import Recipe
from maxup.lab.registry import LANGUAGE_MODELS, MODELS, build, get_parameters

NAME = "digits/mlp-gaussian-maxup"
ARGUMENTS = {"compare": [NAME, "--seeds", "2"], "train": [NAME], "reproduce": ["table-cifar10"]}


def numeric(schema=Recipe, prefix=""):
    """The dotted names of all settings that are numbers or lists of numbers, and their limits."""
    hints, annotated = get_type_hints(schema), get_type_hints(schema, include_extras=True)
    for field in fields(schema):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from numeric(hint, f"{field.name}.")
        elif {int, float, list[int], list[float]} & {hint, *get_args(hint)}:
            yield prefix + field.name, find_limit(annotated[field.name])


RECIPE = dict(numeric())


def call(*words):
    try:
        return main(list(words))
    except SystemExit as stop:
        return stop.code


def test_every_number_of_a_recipe_has_a_range_with_its_default():
    assert len(RECIPE) >= 30
    assert None not in RECIPE.values()
    defaults = flat(asdict(Recipe()))
    for name, limit in RECIPE.items():
        default = defaults[name]
        assert all(one in limit for one in (default if isinstance(default, list) else [default]) if one is not None)


@pytest.mark.parametrize(
    ("registry", "name"), [(registry, name) for registry in (MODELS, LANGUAGE_MODELS) for name in registry]
)
def test_every_argument_of_a_network_has_a_range(registry, name):
    given = {"words": 5} if registry is LANGUAGE_MODELS else {"shape": (3, 32, 32), "num_classes": 10}
    for argument in set(get_parameters(registry, "model", name)) - set(given):
        for value in (10**30, float("nan"), -1):
            with pytest.raises(RecipeError, match=rf"{argument}=\S+ (is out of range; it )?must be"):
                build(registry, "model", name, **given, **{argument: value})


@pytest.mark.parametrize("name", RECIPE)
@pytest.mark.parametrize("value", [10**30, ".nan"])
def test_a_number_of_a_recipe_is_checked(name, value, tmp_path):
    section, _, key = name.rpartition(".")
    value = f"[{value}]" if name in ("data.mean", "data.std", "optim.milestones") else value
    text = f"{section}: {{{key}: {value}}}" if section else f"{key}: {value}"
    (tmp_path / "a.yaml").write_text(f"base: {NAME}\n{text}\n")
    for path, overrides in ((str(tmp_path / "a.yaml"), []), (NAME, [f"--{name}={value}"])):
        with pytest.raises(RecipeError, match=rf"{name}.* must be"):
            parse_recipe(path, overrides)


@pytest.mark.parametrize("value", ["1", "-1", "3", ".nan", "1" + "0" * 30])
def test_a_norm_is_2_or_infinity(value):
    with pytest.raises(RecipeError, match=r"^objective\.p=[^;]* is out of range; it must be 2 or inf$"):
        parse_recipe(NAME, ["--objective.name=adversarial", f"--objective.p={value}"])


def test_a_recorded_recipe_is_checked():
    recipe = asdict(parse_recipe(NAME, []))
    recipe["objective"]["m"] = 10**9
    with pytest.raises(
        RecipeError, match=r"objective\.m=1000000000 is out of range; it must be a whole number from 1 to"
    ):
        recipe_from(recipe)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("value", ["1" + "0" * 30, "9" * 5000, "nan", "-1", "1e999"])
def test_an_option_is_checked(option, value, capsys, monkeypatch, tmp_path):
    verb, flag = option.split()
    monkeypatch.chdir(tmp_path)
    if flag == "--save_every" and (value.isdecimal() or value == "1e999"):
        return  # any number of seconds
    assert call(verb, *ARGUMENTS.get(verb, ["nowhere"]), f"{flag}={value}") == 2
    error = capsys.readouterr().err
    assert f"maxup {verb}: argument {flag}: " in error
    assert len(error) < 3000
    assert not list(tmp_path.iterdir())


def test_an_option_takes_at_most_100_values(capsys):
    assert call("compare", NAME, "--seeds", "2", "--m", *["2"] * 101) == 2
    assert call("certify", "nowhere", "--radii", *["0.5"] * 101) == 2
    assert capsys.readouterr().err.count("has 101 values; the limit is 100") == 2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("resnet20", {"depth": 10**6 + 2}), ("resnet20", {"depth": True}), ("conv", {"dropout": float("nan")}),
     ("conv", {"width": 10**5}), ("mlp", {"hidden": [8] * 101}), ("mlp", {"hidden": 8}), ("mlp", {"hidden": [10**12]}),
     ("wrn16_4", {"width": 10**4}), ("mlp", {"hidden": [10**5] * 3})],
)  # fmt: skip
def test_a_large_network_is_rejected_before_it_takes_memory(name, arguments):
    with pytest.raises(
        ValueError, match=r"is out of range; it must be|must be a list|it must have at most 100|more than 1\.00 G"
    ) as error:
        create_model(name, shape=(3, 32, 32), num_classes=10, **arguments)
    assert "\n" not in str(error.value)


def test_the_library_takes_any_m():
    assert mu.MaxUp(mu.Gaussian(0.1), m=10**9).m == 10**9

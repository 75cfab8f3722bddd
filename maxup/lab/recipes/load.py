"""Load recipes: find the YAML file, merge it with its base, apply the options of the command line, and check it."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentParser

from maxup.errors import RecipeError, a_type, error_message, first_names, format_value, unknown_name
from maxup.lab.limits import MAX_BASES, check_range
from maxup.lab.recipes.document import check_document, parse_yaml, read_yaml
from maxup.lab.recipes.explain import explain
from maxup.lab.recipes.objectives import arguments_of
from maxup.lab.recipes.resolve import override_objective, resolve_objective
from maxup.lab.recipes.schema import SECTIONS, Recipe, flat
from maxup.lab.upgrade import REMOVED, upgrade_recipe

FOLDER = Path(__file__).parent
SUFFIXES = (".yaml", ".yml")
ONLY_WITH = {  # settings that have an effect only if another setting has one of these values
    "optim.milestones": ("optim.schedule", "steps"), "optim.gamma": ("optim.schedule", "steps"),
    "optim.peak": ("optim.schedule", "triangle"), "optim.start_factor": ("optim.schedule", "triangle"),
    "optim.end_factor": ("optim.schedule", "triangle"),
    "optim.momentum": ("optim.name", "sgd", "asgd"), "optim.nesterov": ("optim.name", "sgd", "asgd"),
    "optim.average_from": ("optim.name", "asgd"), "optim.patience": ("optim.name", "asgd"),
}  # fmt: skip


def list_recipes() -> list[str]:
    """Return the names of the recipes in the package."""
    return sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.rglob("*.yaml"))


def find_recipe(name: str) -> Path:
    """Return the file of a recipe, given a path to a YAML file or the name of a recipe in the package."""
    path = Path(name)
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise RecipeError(f"there is no file {name}")
        return path
    if name not in list_recipes():
        if inside := [one for one in list_recipes() if one.startswith(f"{name.rstrip('/')}/")]:
            raise RecipeError(
                f"{name} is a folder of recipes; name one of them: {first_names(inside)} (`maxup ls` lists them)"
            )
        raise RecipeError(unknown_name(name, list_recipes(), "recipe") + " (`maxup ls` lists them)")
    return FOLDER / f"{name}.yaml"


def run_name(name: str) -> str:
    """Return the folder of a recipe's runs: its name, or its path with dashes and without the suffix.

    Example:
        >>> run_name("digits/mlp-gaussian"), run_name("sub/mine.yml"), run_name("/other/folder/mine.yaml")
        ('digits/mlp-gaussian', 'sub-mine', 'mine')
    """
    path = Path(name)
    if path.suffix not in SUFFIXES:
        return name
    relative = Path(os.path.relpath(path))
    return path.stem if ".." in relative.parts else "-".join(relative.with_suffix("").parts)


def read_recipe(name: str) -> dict[str, Any]:
    """Return a recipe as plain data, merged with its bases. Its keys are checked, its values are not."""
    return _read(find_recipe(name), above=())


def parse_recipe(name: str, overrides: list[str]) -> Recipe:
    """Load and check a recipe with options such as ["--objective.m", "8", "--seed", "1"]."""
    content, parser = read_recipe(name), recipe_parser()
    try:
        values = parser.parse_object(content)
    except Exception as error:  # jsonargparse raises many types, such as OverflowError
        raise RecipeError(f"{name}: {explain(error)}") from None
    try:
        if overrides:
            check_document(_by_option(overrides))
            overrides, changes = _split_objective(overrides)
            parser = recipe_parser.__wrapped__()  # not the cached one: the recipe becomes its defaults
            parser.set_defaults(flat(values.as_dict(), SECTIONS))
            values = parser.parse_args(overrides)
            if changes:
                values.objective = override_objective(values.objective, changes)
        recipe = _instantiate(parser, values)
    except Exception as error:
        raise RecipeError(explain(error)) from None
    _reject_without_effect(recipe, overrides)
    return recipe


def recipe_from(record: Mapping[str, Any]) -> Recipe:
    """Build and check a recipe from plain data, such as the record of a run. Older formats are upgraded."""
    check_keys(record := upgrade_recipe(record), Recipe, "the recipe")
    parser = recipe_parser()
    try:
        check_document(record)
        return _instantiate(parser, parser.parse_object(dict(record)))
    except Exception as error:
        raise RecipeError(explain(error)) from None


@cache
def recipe_parser() -> ArgumentParser:
    """Return a parser with an option for every setting. It is cached, because building it is slow."""
    parser = ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_class_arguments(Recipe)
    return parser


def check_keys(content: Any, schema: type, where: str) -> None:
    """Raise a RecipeError if a mapping has a key that the schema does not have."""
    if not isinstance(content, Mapping):
        raise RecipeError(f"{where} must be a mapping of keys to values, but is {a_type(content)}")
    fields = {f.name: f for f in dataclasses.fields(schema)}
    for key, value in content.items():
        if key not in fields:
            if schema is Recipe and key in REMOVED:
                raise RecipeError(f"{where}: {key!r} is an old setting; write objective: {{name: ..., arguments}}")
            known = [*fields, *(["base"] if schema is Recipe else [])]
            raise RecipeError(f"{where}: " + unknown_name(str(key), known, "key"))
        inner = fields[key].default_factory
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            check_keys(value, inner, f"{where}, {key}")


def reject_settings(recipe: Recipe, names: Iterable[str], task: str) -> None:
    """Raise a RecipeError if one of these settings, which only another task uses, is not at its default.

    Example:
        >>> reject_settings(Recipe(batch_size=3), ["batch_size"], "text")
        Traceback (most recent call last):
        maxup.errors.RecipeError: batch_size is for text and has no effect here; remove it
    """
    values, defaults = (flat(dataclasses.asdict(one)) for one in (recipe, Recipe()))
    arguments = arguments_of(recipe.objective["name"])
    defaults |= {f"objective.{key}": parameter.default for key, parameter in arguments.items()}
    for name in names:
        if values.get(name) != defaults.get(name):
            raise RecipeError(f"{name} is for {task} and has no effect here; remove it")


def find_base(base: str, path: Path) -> Path:
    """Return the file of a base that the recipe in `path` names: beside that recipe, or as in `find_recipe`."""
    beside = path.parent / (base if Path(base).suffix in SUFFIXES else f"{base}.yaml")
    try:
        return beside if beside.is_file() else find_recipe(base)
    except (RecipeError, OSError, ValueError) as error:  # a name may be too long, or contain a null byte
        raise RecipeError(f"{path}, base: {error_message(error)}") from None


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in above:
        raise RecipeError(f"{path.name} is its own base, through {len(above)} files; give it another base")
    if len(above) > MAX_BASES:
        raise RecipeError(f"{above[0].name} has more than {MAX_BASES} bases in a row; merge some of these files")
    content = read_yaml(path)
    if not content:
        raise RecipeError(f"{path} is empty; start it with a base, such as  base: digits/mlp-gaussian-maxup")
    base = content.pop("base", None)
    check_keys(content, Recipe, str(path))
    if isinstance(content.get("objective"), str):
        content["objective"] = {"name": content["objective"]}
    if base is None:
        return content
    if not isinstance(base, str):
        raise RecipeError(f"{path}: base must be the name of a recipe, but is {format_value(base)}")
    return _merge(_read(find_base(base, path), (*above, path.resolve())), content)


def _merge(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Merge a recipe into its base, section by section. Lists and arguments are replaced.

    An objective with the name of the base's keeps the arguments that it does not set.
    """
    merged = base | {k: {**base.get(k, {}), **v} if k in SECTIONS else v for k, v in content.items()}
    match base.get("objective"), content.get("objective"):
        case {**before}, {**after} if before.get("name", after.get("name")) == after.get("name", before.get("name")):
            merged["objective"] = {**before, **after}
    return merged


def _split_objective(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split options into those of other settings and the changes to the objective.

    Example:
        >>> _split_objective(["--objective.m", "8", "--seed=1", "--objective=average"])
        (['--seed=1'], {'m': 8, 'name': 'average'})
    """
    rest, changes, remaining = list[str](), dict[str, Any](), iter(words)
    for word in remaining:
        option, equals, text = word.partition("=")
        if option != "--objective" and not option.startswith("--objective."):
            rest.append(word)
            continue
        text = text if equals else next(remaining, "")
        key = option.removeprefix("--objective").removeprefix(".")
        if not text.strip() or text.startswith("--"):
            raise RecipeError(f"{option} needs a value, such as --objective.m 4")
        value = parse_yaml(text)
        changes |= {key: value} if key else value if isinstance(value, dict) else {"name": value}
    return rest, changes


def _by_option(words: list[str]) -> dict[str, list[str]]:
    """Return the values that a command line gives to each option.

    Example:
        >>> _by_option(["--seed", "1", "--optim.milestones+=0.5", "--optim.milestones+=0.8"])
        {'--seed': ['1'], '--optim.milestones+': ['0.5', '0.8']}
    """
    values: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            values.setdefault(option, []).extend([value] if equals else [])
        else:
            values.setdefault(option, []).append(word)
    return values


def _reject_without_effect(recipe: Recipe, overrides: list[str]) -> None:
    values = flat(dataclasses.asdict(recipe))
    for option in (word.partition("=")[0].rstrip("+") for word in overrides if word.startswith("--")):
        other, *needed = ONLY_WITH.get(option.removeprefix("--"), (None,))
        if other and values[other] not in needed:
            raise RecipeError(
                f"{option} has no effect, because {other} is {values[other]}; remove it, or add --{other} {needed[0]}"
            )


def _instantiate(parser: ArgumentParser, values: Any) -> Recipe:
    recipe = Recipe(**vars(parser.instantiate(values)))
    recipe.objective = resolve_objective(recipe.objective)
    for milestone in recipe.optim.milestones or ():
        if 1 < milestone <= recipe.epochs:
            raise RecipeError(
                f"optim.milestones has {milestone:g}, but milestones are fractions of the epochs, from 0 to 1; epoch "
                f"{milestone:g} of {recipe.epochs} is {milestone / recipe.epochs:.4g}"
            )
    _check_values(recipe)
    if recipe.optim.nesterov and recipe.optim.name != "adamw" and not recipe.optim.momentum:
        raise RecipeError("optim.nesterov needs momentum; set optim.momentum above 0")
    if recipe.optim.sam is not None and (recipe.optim.accumulate > 1 or recipe.precision == "fp16"):
        raise RecipeError("optim.sam needs optim.accumulate 1 and precision no or bf16")
    if recipe.optim.sam is not None and recipe.objective.get("strategy") == "retain":
        raise RecipeError("optim.sam forwards the worst copies twice; it needs objective.strategy recompute")
    return recipe


def _check_values(section: Any, prefix: str = "") -> None:
    """Raise a RecipeError if a number is out of range, or if a setting is null and its type does not allow it.

    jsonargparse accepts null everywhere.
    """
    hints = get_type_hints(type(section), include_extras=True)
    for field in dataclasses.fields(section):
        name, value, hint = prefix + field.name, getattr(section, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            _check_values(value, f"{name}.")
        elif value is None and type(None) not in get_args(hint):
            raise RecipeError(f"{name} is null; give it a value, or remove it to use the default")
        else:
            check_range(name, value, hint)

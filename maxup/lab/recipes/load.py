"""Recipes: YAML files with a base, named by their path, overridden on the command line."""

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from maxup.errors import RecipeError, error_message, first_names, format_value, unknown_name
from maxup.lab.limits import MOST_BASES, MOST_NODES, MOST_VALUES, check_recipe
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of, override_objective, resolve_objective
from maxup.lab.recipes.schema import Recipe, Spec
from maxup.lab.storage.atomic_io import read_text
from maxup.lab.upgrade import REMOVED, upgrade_recipe

FOLDER = Path(__file__).parent
SUFFIXES = (".yaml", ".yml")  # of recipes in files of one's own
KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a word", list: "a list", dict: "a mapping"
}  # fmt: skip
READERS = {  # of settings and sections that change something only if another setting has one of these values
    "optim.milestones": ("optim.schedule", "steps"), "optim.gamma": ("optim.schedule", "steps"),
    "optim.momentum": ("optim.name", "sgd", "asgd"), "optim.nesterov": ("optim.name", "sgd", "asgd"),
    "optim.average_from": ("optim.name", "asgd"), "optim.patience": ("optim.name", "asgd"),
}  # fmt: skip
SHOW_ALL = "maxup train RECIPE --print_config shows all"
TOO_LARGE = f"it has more than {MOST_NODES:,} values; give fewer"
SECTIONS = {f.name for f in dataclasses.fields(Recipe) if dataclasses.is_dataclass(f.default_factory)}


class _Loader(yaml.SafeLoader):
    """Plain YAML without aliases: a few lines of them, nested, stand for more values than can be checked in a day."""

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > 2 * MOST_NODES:  # keys are nodes too
            raise RecipeError(TOO_LARGE)
        if self.check_event(yaml.AliasEvent):
            place = self.peek_event()
            line = place.start_mark.line + 1
            raise RecipeError(f"line {line} uses the alias *{place.anchor:.40}; write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"line {line} has a {key.id} as a key; a key must be a word")
            if key.value in seen:
                raise RecipeError(f"line {line} gives {key.value!r:.60} a second time; keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """What plain YAML says: no aliases, no key twice. All YAML that is read here, of whatever file, goes through this.

    Example:
        >>> parse_yaml("a: [1, b]")
        {'a': [1, 'b']}
        >>> parse_yaml("[&a x, *a]")
        Traceback (most recent call last):
        maxup.errors.RecipeError: line 1 uses the alias *a; write out what it stands for
    """
    return yaml.load(text, _Loader)  # a SafeLoader


def list_recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.rglob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path to a YAML file, or the name of one that comes with the package."""
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
    """What a recipe's runs are called below a folder of runs: its name, or its path without the ending, with dashes.

    Example:
        >>> run_name("digits/mlp-gaussian"), run_name("sub/mine.yml"), run_name("/else/where/mine.yaml")
        ('digits/mlp-gaussian', 'sub-mine', 'mine')
    """
    path = Path(name)
    if path.suffix not in SUFFIXES:
        return name
    below = Path(os.path.relpath(path))  # this folder, however the path is written
    return path.stem if ".." in below.parts else "-".join(below.with_suffix("").parts)


def read_recipe(name: str) -> dict[str, Any]:
    """What a recipe says, its bases included, as plain data whose keys are checked."""
    return _read(find_recipe(name), above=())


def parse_recipe(name: str, overrides: list[str]) -> Recipe:
    """A recipe with overrides such as ["--objective.m", "8", "--seed", "1"], checked.

    Example:
        >>> parse_recipe("digits/mlp-gaussian-maxup", ["--objective.m", "8"]).objective["m"]
        8
    """
    said, parser = read_recipe(name), recipe_parser()
    try:
        check_document(said)
        found = parser.parse_object(said)
    except Exception as error:  # the parser lets some through on strange values, such as OverflowError
        raise RecipeError(f"{name}: {_sentence(error)}") from None
    try:
        if overrides:
            check_document(_by_option(overrides))
            overrides, changes = _split_objective(overrides)
            parser = recipe_parser.__wrapped__()  # of its own: its defaults are this recipe
            parser.set_defaults(flat(found.as_dict(), SECTIONS))
            found = parser.parse_args(overrides)
            found.objective = override_objective(resolve_objective(found.objective), changes)
        recipe = _instantiate(parser, found)
    except Exception as error:
        raise RecipeError(_sentence(error)) from None
    values = flat(dataclasses.asdict(recipe))
    for option in (one.partition("=")[0].rstrip("+") for one in overrides if one.startswith("--")):
        key = option.removeprefix("--")
        if not (rule := READERS.get(key) or READERS.get(key.partition(".")[0])):
            continue
        reader, *wanted = rule
        if values[reader] not in wanted:
            came = f"{option} changes nothing, because {reader} is {values[reader]}"
            raise RecipeError(f"{came}; leave it out, or add --{reader} {wanted[0]}")
    return recipe


def recipe_from(said: Mapping[str, Any]) -> Recipe:
    """A recipe from plain data, such as a run's own record of it, which an older version may have written."""
    check_keys(said := upgrade_recipe(said), Recipe, "the recipe")
    parser = recipe_parser()
    try:
        check_document(said)
        return _instantiate(parser, parser.parse_object(dict(said)))
    except Exception as error:
        raise RecipeError(_sentence(error)) from None


@cache
def recipe_parser() -> ArgumentParser:
    """A parser with an option for every field of a recipe; one for all, since it takes long to make."""
    parser = ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_class_arguments(Recipe)
    return parser


def check_keys(said: Any, schema: type, where: str) -> None:
    """Refuse keys the schema does not have, naming the nearest one it has."""
    if not isinstance(said, Mapping):
        raise RecipeError(f"{where} must be a mapping of keys to values, but is a {type(said).__name__}")
    fields = {f.name: f for f in dataclasses.fields(schema)}
    for key, value in said.items():
        if key not in fields:
            if schema is Recipe and key in REMOVED:
                raise RecipeError(f"{where}: {key!r} is an old setting; write objective: {{name: ..., arguments}}")
            known = [*fields, *(["base"] if schema is Recipe else [])]
            raise RecipeError(f"{where}: " + unknown_name(str(key), known, "key"))
        inner = fields[key].default_factory
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            check_keys(value, inner, f"{where}, {key}")


def refuse_settings(recipe: Recipe, names: Iterable[str], of: str) -> None:
    """Refuse settings that nothing in this kind of run reads, being of another, unless they are as by default.

    Example:
        >>> refuse_settings(Recipe(batch_size=3), ["batch_size"], "text")
        Traceback (most recent call last):
        maxup.errors.RecipeError: batch_size is for text, and nothing of this run reads it; leave it out
    """
    said, default = (flat(dataclasses.asdict(one)) for one in (recipe, Recipe()))
    arguments = arguments_of(recipe.objective["name"])
    default |= {f"objective.{key}": parameter.default for key, parameter in arguments.items()}
    for name in names:
        if said.get(name) != default.get(name):
            raise RecipeError(f"{name} is for {of}, and nothing of this run reads it; leave it out")


def flat(said: Mapping[str, Any], sections: Collection[str] = (*SECTIONS, "objective")) -> dict[str, Any]:
    """What a recipe says, by dotted keys; what a section holds may be another mapping, which stays whole.

    Example:
        >>> flat({"optim": {"lr": 0.1}, "seed": 3})
        {'optim.lr': 0.1, 'seed': 3}
    """
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key in sections and not isinstance(value, Mapping):
            raise TypeError(f"its recipe has {value!r:.40} for {key}")
        found |= {f"{key}.{k}": v for k, v in value.items()} if key in sections else {key: value}
    return found


def plain(path: Path) -> dict[str, Any]:
    """What a recipe's file says by itself, its base a name; its keys are not checked."""
    try:
        said = parse_yaml(read_text(path)) or {}
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    except Exception as error:  # of many kinds: "!!bool 3" is a KeyError, "!!int ''" an IndexError
        raise RecipeError(f"{path} cannot be read as YAML: {error_message(error)}") from None
    if not isinstance(said, dict):
        raise RecipeError(f"{path} must hold keys and values, but holds a {type(said).__name__}")
    return said


def check_document(said: Any) -> None:
    """Refuse a document that is too large, or that has an alias in a string.

    Call this before the parser, whose time grows with the square of a list's length. The parser reads strings as YAML
    again, and the strings in them, so this does the same.

    Example:
        >>> check_document({"optim": {"milestones": [0.5] * 101}})
        Traceback (most recent call last):
        maxup.errors.RecipeError: optim.milestones has 101 values; give 100 at most
    """
    waiting, count = [("", said)], 0
    while waiting:
        name, value = waiting.pop()
        count += 1
        if count > MOST_NODES:
            raise RecipeError(TOO_LARGE)
        if isinstance(value, Mapping):
            words = ((key if isinstance(key, str) else format_value(key), one) for key, one in value.items())
            waiting += [(f"{name}.{key:.60}".lstrip(".")[:80], one) for key, one in words]
        elif isinstance(value, list | tuple):
            if len(value) > MOST_VALUES:
                raise RecipeError(f"{name or 'a list'} has {len(value)} values; give {MOST_VALUES} at most")
            waiting += [(name, one) for one in value]
        elif isinstance(value, str) and ("*" in value or len(value) > MOST_VALUES):  # a shorter one has fewer values
            try:
                inner = parse_yaml(value)
            except RecipeError:
                raise
            except Exception:  # of whatever type: the parser says what is wrong with it
                continue
            if inner != value:
                waiting.append((name, inner))


def _split_objective(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The overrides without those of the objective, and what these change in it.

    Example:
        >>> _split_objective(["--objective.m", "8", "--seed=1", "--objective=average"])
        (['--seed=1'], {'m': 8, 'name': 'average'})
    """
    rest, changes, waiting = list[str](), dict[str, Any](), iter(words)
    for word in waiting:
        option, given, text = word.partition("=")
        if option != "--objective" and not option.startswith("--objective."):
            rest.append(word)
            continue
        value = parse_yaml(text if given else next(waiting, ""))
        key = option.removeprefix("--objective").removeprefix(".")
        if value is None:
            raise RecipeError(f"{option} needs a value, such as --objective.m 4")
        changes |= {key: value} if key else value if isinstance(value, dict) else {"name": value}
    return rest, changes


def _by_option(words: list[str]) -> dict[str, list[str]]:
    """The values that a command line gives to each option.

    Example:
        >>> _by_option(["--seed", "1", "--optim.milestones+=0.5", "--optim.milestones+=0.8"])
        {'--seed': ['1'], '--optim.milestones+': ['0.5', '0.8']}
    """
    found: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, given, value = word.partition("=")
            found.setdefault(option, []).extend([value] if given else [])
        else:
            found.setdefault(option, []).append(word)
    return found


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in above:
        raise RecipeError(f"{path.name} is its own base, by way of {len(above)} files; give it another base")
    if len(above) > MOST_BASES:
        raise RecipeError(f"{above[0].name} has more than {MOST_BASES} bases in a row; merge some of these files")
    said = plain(path)
    if not said:
        raise RecipeError(f"{path} is empty; a recipe may begin with  base: digits/mlp-gaussian-maxup")
    base = said.pop("base", None)
    check_keys(said, Recipe, str(path))
    if isinstance(said.get("objective"), str):
        said["objective"] = {"name": said["objective"]}
    if base is None:
        return said
    if not isinstance(base, str):
        raise RecipeError(f"{path}: base must be the name of a recipe, but is {format_value(base)}")
    return _merge(_read(find_base(base, path), (*above, path.resolve())), said)


def find_base(base: str, path: Path) -> Path:
    """The file of a base that the recipe in `path` names: one beside it, or else as `find_recipe` has it."""
    beside = path.parent / (base if Path(base).suffix in SUFFIXES else f"{base}.yaml")
    try:
        return beside if beside.is_file() else find_recipe(base)
    except (RecipeError, OSError, ValueError) as error:  # a name may be too long, or hold a null byte
        raise RecipeError(f"{path}, base: {error_message(error)}") from None


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Values of `new` over those of `old`, section by section; lists and arguments are replaced whole."""
    merged = old | {k: {**old.get(k, {}), **v} if k in SECTIONS else v for k, v in new.items()}
    match old.get("objective"), new.get("objective"):
        case {"name": name, **before}, {**after} if after.get("name", name) == name:
            merged["objective"] = {"name": name, **before, **after}
    return merged


def _instantiate(parser: ArgumentParser, found: Any) -> Recipe:
    recipe = Recipe(**vars(parser.instantiate(found)))
    _refuse_null(recipe)
    recipe.objective = resolve_objective(recipe.objective)
    for milestone in recipe.optim.milestones:
        if 1 < milestone <= recipe.epochs:
            raise RecipeError(
                f"optim.milestones has {milestone:g}; they are fractions of the epochs, between 0 and 1; epoch "
                f"{milestone:g} of {recipe.epochs} is {milestone / recipe.epochs:.4g}"
            )
    if sentence := check_recipe(flat(dataclasses.asdict(recipe))):
        raise RecipeError(sentence)
    if recipe.optim.nesterov and recipe.optim.name != "adamw" and not recipe.optim.momentum:
        raise RecipeError("optim.nesterov is a kind of momentum; set optim.momentum above 0")
    if recipe.optim.sam is not None and (recipe.optim.accumulate > 1 or recipe.precision == "fp16"):
        raise RecipeError("optim.sam needs optim.accumulate 1 and precision no or bf16")
    if recipe.optim.sam is not None and recipe.objective.get("strategy") == "retain":
        raise RecipeError("optim.sam passes over the winners twice; it needs objective.strategy recompute")
    return recipe


def _refuse_null(section: Any, where: str = "") -> None:
    """The parser takes null for anything."""
    hints = get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            _refuse_null(value, f"{field.name}.")
        elif value is None and type(None) not in get_args(hints[field.name]):
            raise RecipeError(f"{where}{field.name} is null; give it a value, or leave it out for its default")


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if unknown := re.match(r"unrecognized arguments: (--)?([\w.+-]+)", text):
        if not unknown[1]:
            return f"{unknown[2]!r} is no option; one begins with --, such as --seed 1 ({SHOW_ALL})"
        of_objectives = {f"objective.{key}": None for name in OBJECTIVES for key in arguments_of(name)}
        keys = [*flat(dataclasses.asdict(Recipe())), *of_objectives]
        if same := [key for key in keys if key.endswith(f".{unknown[2].rpartition('.')[2]}")]:
            meant = " or ".join(f"--{key}" for key in same)
            return f"option {unknown[2]!r} is unknown; did you mean {meant}? ({SHOW_ALL})"
        return f"{unknown_name(unknown[2], keys, 'option')} ({SHOW_ALL})"
    if section := re.match(r'.*?"(\w+)": Unable to load config', text):
        return f"{section[1]} is a section of settings; give one of them, such as --{_first_of(section[1])}"
    if wrong := re.search(r'"([\w.]+)": (?:Expected|Does not validate).*(?:Got|Given) value: (.*)$', text):
        return _kind(wrong[1], wrong[2]) or text
    return text.replace('Parser key "', '"').replace("<class '", "").replace("'>", "")


def _first_of(section: str) -> str:
    """A setting of a section, as an option and its value.

    Example:
        >>> _first_of("optim")
        'optim.name sgd'
    """
    key, value = next((k, v) for k, v in flat(dataclasses.asdict(Recipe())).items() if k.startswith(f"{section}."))
    return f"{key} {value}"


def _kind(key: str, came: str) -> str:
    """What a setting must be, and what came instead; nothing where the key is not one setting's."""
    wanted: Any = Recipe
    for part in key.split("."):
        wanted = get_type_hints(wanted).get(part) if dataclasses.is_dataclass(wanted) else None
    choices = [kind for kind in get_args(wanted) if kind is not type(None)] if wanted else []
    if choices and isinstance(choices[0], str):  # a Literal
        hint = " (YAML reads no as false: write 'no')" if came == "False" and "no" in choices else ""
        return unknown_name(came, choices, key) + hint
    if wanted == list[Spec]:
        return f"{key} must be a list of {{name: ..., arguments}}, but has {came:.60}"
    null = " or null" if type(None) in get_args(wanted) else ""
    kind = choices[0] if null else wanted
    kind = get_origin(kind) or kind
    return f"{key} must be {KINDS[kind]}{null}, but is {came:.60}" if kind in KINDS else ""

"""Every setting of a recipe with its type, default and description, for `maxup train --help` and docs/settings.md.

Descriptions are the docstrings of `schema.py`, `objectives.py` and the perturbations. Their files are parsed, not
imported, so that `--help` does not import torch.
"""

import ast
import json
import math
import re
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import maxup
from maxup.lab.recipes.build import FROM_DATA, NOT_IN_RECIPES
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.lab.recipes.schema import Recipe
from maxup.lab.registry import PERTURBATIONS

SPEC = "{name: ..., arguments}"
WIDTH = 80  # of the text for the terminal
REQUIRED, FROM_THE_DATA = "required", "from the data"
HELP = """\
settings:
  Give settings of the recipe in its YAML file, or as options that override it.
  Values are YAML: --optim.lr 0.05 --perturb '[{name: cutout, length: 16}]'
"""


@dataclass(frozen=True)
class Setting:
    """One setting, or one argument of an objective or a perturbation."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True)
class Group:
    """The settings of a section, of an objective or of a perturbation.

    `choices` are the objectives or perturbations that the settings of a section can name.
    """

    name: str
    description: str
    settings: list[Setting]
    choices: "list[Group]" = field(default_factory=list)


def sections() -> list[Group]:
    """Return all settings by section."""
    schema, defaults = _definitions(Path(__file__).with_name("schema.py")), asdict(Recipe())
    groups, single = dict[str, Group](), dict[str, Setting]()
    for name, (kind, text) in _fields(schema["Recipe"]).items():
        if kind not in schema:
            single[name] = Setting(name, kind, format_default(defaults[name]), text)
            continue
        settings = [
            Setting(f"{name}.{key}", inner, format_default(defaults[name][key]), text)
            for key, (inner, text) in _fields(schema[kind]).items()
        ]
        groups[name] = Group(name, _docstring(schema[kind]), settings)
    augment, perturb, objective = (single.pop(name) for name in ("augment", "perturb", "objective"))
    about = f"Each is a list of perturbations {SPEC}, applied in order."
    groups["perturb"] = Group("augment and perturb", about, [augment, perturb], perturbations())
    about = f"The objective is {SPEC}. --objective.name changes it and keeps the arguments that both take."
    groups["objective"] = Group("objective", about, [objective], objectives())
    groups["run"] = Group("run", "Settings without a section.", list(single.values()))
    return [groups[name] for name in ("data", "model", "perturb", "objective", "optim", "language", "run")]


def objectives() -> list[Group]:
    """Return the arguments of every objective."""
    functions, groups = _definitions(Path(__file__).with_name("objectives.py")), []
    for name in OBJECTIVES:
        node, parameters = functions[name], arguments_of(name)
        assert isinstance(node, ast.FunctionDef)
        text = _arguments(node)
        settings = [
            Setting(f"objective.{key}", format_type(one.annotation), format_default(parameters[key].default), text[key])
            for one in node.args.kwonlyargs
            if (key := one.arg)
        ]
        groups.append(Group(name, _first_paragraph(node), settings))
    return groups


def perturbations() -> list[Group]:
    """Return the arguments of every perturbation that a recipe can give."""
    groups = []
    for name, target in PERTURBATIONS.items():
        module, _, attribute = target.partition(":")
        node = _definitions(Path(maxup.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py"))[attribute]
        (make,) = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
        positional = make.args.args[1:]  # without self
        required: list[ast.expr | None] = [None] * (len(positional) - len(make.args.defaults))
        defaults = [*required, *make.args.defaults, *make.args.kw_defaults]
        text, settings = _arguments(node), []
        for one, default in zip([*positional, *make.args.kwonlyargs], defaults, strict=True):
            if one.arg in NOT_IN_RECIPES:
                continue
            value = REQUIRED if default is None else format_default(ast.literal_eval(default))
            about = re.sub(r" Default: [\d.]+\.(?= |$)", "", text[one.arg])  # shown separately
            if one.arg in FROM_DATA:  # the docstring describes another default
                value, about = FROM_THE_DATA, _first_sentence(about)
            settings.append(Setting(one.arg, format_type(one.annotation), value, about))
        groups.append(Group(name, _first_sentence(_first_paragraph(node)), settings))
    return groups


def format_type(annotation: ast.expr | None) -> str:
    """Describe a type annotation.

    Example:
        >>> format_type(ast.parse("list[float] | None", mode="eval").body)
        'list of float or null'
        >>> format_type(ast.parse("Literal['a', 'b', 'c']", mode="eval").body)
        'a, b or c'
    """
    match annotation:
        case ast.BinOp(left=left, right=right):
            return f"{format_type(left)} or {format_type(right)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            *first, last = [str(ast.literal_eval(choice)) for choice in choices]
            return f"{', '.join(first)} or {last}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return format_type(kind)
        case ast.Subscript(value=ast.Name(id="list" | "Sequence"), slice=ast.Name(id="Spec")):
            return f"list of {SPEC}"
        case ast.Subscript(value=ast.Name(id="list" | "Sequence"), slice=inner):
            return f"list of {format_type(inner)}"
        case ast.Constant(value=None):
            return "null"
        case ast.Name(id="Spec"):
            return "mapping"
        case ast.Name(id=name):
            return name
    return ast.unparse(annotation) if annotation else "any"


def format_default(value: Any) -> str:
    """Format a default as YAML has it.

    Example:
        >>> [format_default(value) for value in (None, True, 1e-4, "sgd", [0.5, 0.75], float("inf"))]
        ['null', 'true', '0.0001', 'sgd', '[0.5, 0.75]', '.inf']
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isinf(value):
        return ".inf"
    if isinstance(value, dict) and "name" in value:
        return f"{{{', '.join(f'{key}: {format_default(one)}' for key, one in value.items())}}}"
    return json.dumps(value)


def help_text() -> str:
    """Return all settings as plain text, for `maxup train --help`."""

    def wrap(text: str, indent: int) -> list[str]:
        return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)

    def describe(one: Setting, indent: int, prefix: str = "--") -> list[str]:
        default = REQUIRED if one.default == REQUIRED else f"default: {one.default}"
        return wrap(f"{prefix}{one.name} {one.type} ({default})", indent) + wrap(one.description, indent + 4)

    lines = [HELP.rstrip()]
    for section in sections():
        lines += ["", f"{section.name}:", *wrap(section.description, 2)]
        lines += [line for one in section.settings for line in describe(one, 2)]
        for choice in section.choices:
            lines += ["", *wrap(f"{choice.name}: {choice.description}", 2)]
            prefix = "--" if section.name == "objective" else ""
            given = [one for one in choice.settings if one.default != FROM_THE_DATA]
            lines += [line for one in given for line in describe(one, 6, prefix)]
            if rest := [one.name for one in choice.settings if one not in given]:
                lines += wrap(f"{' and '.join(rest)} (default: {FROM_THE_DATA})", 6)
    return "\n".join(lines) + "\n"


def _definitions(file: Path) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _fields(node: ast.ClassDef | ast.FunctionDef) -> dict[str, tuple[str, str]]:
    """Return the type and the docstring of every field of a dataclass."""
    fields: dict[str, tuple[str, str]] = {}
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                fields[name] = format_type(kind), text
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind), _:
                fields[name] = format_type(kind), ""
    return fields


def _arguments(node: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """Return the descriptions in the "Args:" section of a docstring."""
    _, _, section = _docstring(node).partition("Args:\n")
    section = textwrap.dedent(section.partition("\n\n")[0])
    entries = re.findall(r"^\*{0,2}(\w+): (.*(?:\n .*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()).replace("`math.inf`", ".inf") for name, text in entries}


def _first_paragraph(node: ast.ClassDef | ast.FunctionDef) -> str:
    return " ".join(_docstring(node).partition("\n\n")[0].split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]

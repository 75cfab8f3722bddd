"""Copy a recipe to a file that you can change."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.errors import RecipeError
from maxup.lab.output import say

GROUP = "Recipes and data"
EXAMPLES = """example:
  maxup cp digits/mlp-gaussian-maxup mine.yaml && maxup train mine.yaml
"""


def main(argv: Sequence[str]) -> int:
    """Copy a recipe."""
    about = "Copy a recipe to a file that you can change. A base that is a file becomes a path relative to the copy."
    parser = parser_of("cp", about, EXAMPLES)
    parser.add_argument("recipe", help="name of a recipe, or a YAML file")
    parser.add_argument("file", type=Path, help="new file, must end in .yaml")
    args = parser.parse_args(argv)
    from maxup.lab.recipes.load import find_recipe

    source = find_recipe(args.recipe)
    if args.file.suffix != ".yaml":
        raise RecipeError(f"{args.file} must end in .yaml, to distinguish it from the name of a recipe")
    if args.file.exists():
        raise RecipeError(f"{args.file} exists; remove it first, or choose another name")
    if not args.file.parent.is_dir():
        raise RecipeError(f"there is no folder {args.file.parent}; create it first, or choose another name")
    args.file.write_text(_relocate(source, args.file))
    say(f"{args.file}: now  maxup train {args.file}")
    return 0


def _relocate(source: Path, file: Path) -> str:
    """Return the text of a recipe. If its base is a user's file, the path becomes relative to the copy's folder."""
    from maxup.lab.recipes.document import read_yaml
    from maxup.lab.recipes.load import FOLDER, find_base

    base, text = read_yaml(source).get("base"), source.read_text(encoding="utf-8")
    if not isinstance(base, str) or source.parent.resolve() == file.parent.resolve():
        return text
    base_file = find_base(base, source).resolve()
    if base_file.is_relative_to(FOLDER.resolve()):
        return text
    relative = os.path.relpath(base_file, file.parent.resolve())
    relocated, count = re.subn(r"^base:.*$", lambda _: f"base: {json.dumps(relative)}", text, flags=re.MULTILINE)
    if count != 1:
        raise RecipeError(f"{source} does not have its base on a separate line; write  base: {base}")
    return relocated

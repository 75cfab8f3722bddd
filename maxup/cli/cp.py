"""`maxup cp RECIPE FILE`: copy a recipe to a file of your own, to change it."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.lab.output import say

EXAMPLES = """example:
  maxup cp digits/mlp-gaussian-maxup mine.yaml && maxup train mine.yaml
"""


def main(argv: Sequence[str]) -> int:
    """Copy."""
    what = "Copy a recipe to a file of your own. Its base stays a reference, by a path that fits the copy."
    parser = parser_of("cp", what, EXAMPLES)
    parser.add_argument("recipe", help="name of a recipe, or a YAML file")
    parser.add_argument("file", type=Path, help="where to; must end in .yaml and not exist")
    args = parser.parse_args(argv)
    from maxup.errors import RecipeError
    from maxup.lab.recipes.load import find_recipe

    source = find_recipe(args.recipe)
    if args.file.suffix != ".yaml":
        raise RecipeError(f"{args.file} must end in .yaml, so that it can be told from a recipe's name")
    if args.file.exists():
        raise RecipeError(f"{args.file} exists; remove it first, or choose another name")
    if not args.file.parent.is_dir():
        raise RecipeError(f"there is no folder {args.file.parent}; make it first, or choose another name")
    text = _moved(source, args.file)
    args.file.write_text(text)
    say(f"{args.file}: now  maxup train {args.file}")
    return 0


def _moved(source: Path, file: Path) -> str:
    """The recipe's text; where its base is a file of the user's own, its path as seen from the copy's folder."""
    from maxup.errors import RecipeError
    from maxup.lab.recipes.load import FOLDER, find_base, plain

    base, text = plain(source).get("base"), source.read_text(encoding="utf-8")
    if not isinstance(base, str) or source.parent.resolve() == file.parent.resolve():
        return text
    found = find_base(base, source).resolve()
    if found.is_relative_to(FOLDER.resolve()):
        return text
    there = os.path.relpath(found, file.parent.resolve())
    moved, count = re.subn(r"^base:.*$", lambda _: f"base: {json.dumps(there)}", text, flags=re.MULTILINE)
    if count != 1:
        raise RecipeError(f"{source} does not name its base on a line of its own; write it so, as base: {base}")
    return moved

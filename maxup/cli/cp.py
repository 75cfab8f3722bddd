"""`maxup cp RECIPE FILE`: copy a recipe to a file of your own, to change it."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of

EXAMPLES = """example:
  maxup cp digits/mlp-gaussian-maxup mine.yaml && maxup train mine.yaml
"""


def main(argv: Sequence[str]) -> int:
    """Copy."""
    parser = parser_of("cp", "Copy a recipe to a file of your own. Its base stays a reference.", EXAMPLES)
    parser.add_argument("recipe", help="name of a recipe, or a YAML file")
    parser.add_argument("file", type=Path, help="where to; must end in .yaml and not exist")
    args = parser.parse_args(argv)
    from maxup.recipes.load import RecipeError, find_recipe

    source = find_recipe(args.recipe)
    if args.file.suffix != ".yaml":
        raise RecipeError(f"{args.file} must end in .yaml, so that it can be told from a recipe's name")
    if args.file.exists():
        raise RecipeError(f"{args.file} exists; remove it first, or choose another name")
    if not args.file.parent.is_dir():
        raise RecipeError(f"there is no folder {args.file.parent}; make it first, or choose another name")
    args.file.write_text(source.read_text())
    print(f"{args.file}: now  maxup train {args.file}")
    return 0

"""`maxup ls [WORD]`: the recipes, those whose name holds a word; `--models` the networks."""

import argparse
from collections.abc import Sequence

EXAMPLES = """examples:
  maxup ls             every recipe
  maxup ls digits      those with "digits" in their name
  maxup ls --models    the networks a recipe can name
"""


def main(argv: Sequence[str]) -> int:
    """List."""
    parser = argparse.ArgumentParser(
        "maxup ls", description="List recipes.", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("word", nargs="?", default="", help="show recipes whose name holds this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    args = parser.parse_args(argv)
    if args.models:
        from maxup.registry import MODELS

        print("\n".join(name for name in sorted(MODELS) if args.word in name))
        return 0
    from maxup.recipes.load import find_recipe, list_recipes

    names = [name for name in list_recipes() if args.word in name]
    for name in names:
        what = find_recipe(name).read_text().partition("\n")[0].lstrip("# ")
        print(f"{name:<36} {what}")
    if not names:
        print(f"no recipe has {args.word!r} in its name")
    return 0

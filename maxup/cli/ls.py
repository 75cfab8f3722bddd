"""`maxup ls [WORD]`: the recipes, those whose name holds a word; `--models` the networks."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.cli.report import folder

EXAMPLES = """examples:
  maxup ls             every recipe
  maxup ls digits      those with "digits" in their name
  maxup ls --models    the networks a recipe can name
"""


def main(argv: Sequence[str]) -> int:
    """List."""
    parser = parser_of(
        "ls",
        "List recipes: what each is, the paper's number for it, ours from the runs there are (mean ± std, "
        "n seeds), and its cost: seconds of training where measured, else the copies m forwarded for every example.",
        EXAMPLES,
    )
    parser.add_argument("word", nargs="?", default="", help="show recipes whose name holds this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    option = partial(parser.add_argument, metavar="DIR", type=folder)
    option("--results", default=Path("results/runs"), help="result files (default: results/runs)")
    option("--runs", default=Path("runs"), help="folders of runs (default: runs)")
    args = parser.parse_args(argv)
    if args.models:
        from maxup.registry import LANGUAGE_MODELS, MODELS

        print("\n".join(name for name in sorted([*MODELS, *LANGUAGE_MODELS]) if args.word in name))
        return 0
    from maxup.report.listing import listing, show

    entries, notes = listing(args.word, results=args.results, runs=args.runs)
    show(entries)
    for note in notes:
        print(note, file=sys.stderr)
    if not entries:
        print(f"no recipe has {args.word!r} in its name")
    return 0

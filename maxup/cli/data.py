"""`maxup data`: which data sets are found where, and how to get the missing ones."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.lab.output import say

EXAMPLES = """example:
  MAXUP_DATA=~/datasets maxup data
"""
WITH = {"digits": "comes with scikit-learn", "text": "comes with Python; or any folder, as data.root"}


def main(argv: Sequence[str]) -> int:
    """Show."""
    parser = parser_of("data", "Show which data sets are found where, and how to get the missing ones.", EXAMPLES)
    parser.add_argument("--root", help="folder to look in first")
    args = parser.parse_args(argv)
    from maxup.errors import DataError
    from maxup.lab.data import list_data
    from maxup.lab.data.find import locate, missing

    if args.root is not None and not Path(args.root).expanduser().is_dir():
        raise DataError(f"there is no folder {args.root}; correct --root, or leave it out to see the usual places")
    told = os.environ.get("MAXUP_DATA")
    if told and not Path(told).expanduser().is_dir():
        say(f"MAXUP_DATA is {told}, and there is no such folder", file=sys.stderr)
    for name in list_data():
        found = WITH.get(name) or locate(name, args.root)
        say(f"{name:<14} {found if found else 'not found. ' + missing(name)}")
    return 0

"""Show which data sets are found, and how to get the others."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_json, parser_of
from maxup.errors import DataError
from maxup.lab.output import say, say_json

GROUP = "Recipes and data"
EXAMPLES = """example:
  MAXUP_DATA=~/datasets maxup data
"""
BUILT_IN = {
    "digits": "comes with scikit-learn",
    "imagefolder": "your images: set data.root to a folder with one folder per class",
    "text": "comes with Python; or set data.root to your text file, or to a folder of text",
}


def main(argv: Sequence[str]) -> int:
    """Show the data sets."""
    parser = parser_of("data", "Show which data sets are found, where, and how to get the others.", EXAMPLES)
    parser.add_argument("--root", metavar="DIR", help="folder to search first")
    add_json(parser)
    args = parser.parse_args(argv)
    from maxup.lab.data import list_data
    from maxup.lab.data.find import how_to_get, locate

    if args.root is not None and not Path(args.root).expanduser().is_dir():
        raise DataError(f"there is no folder {args.root}; correct --root, or remove it to search the default ones")
    root = os.environ.get("MAXUP_DATA")
    if root and not Path(root).expanduser().is_dir():
        say(f"MAXUP_DATA is {root}, but there is no such folder", file=sys.stderr)
    entries = []
    for name in list_data():
        place = None if name in BUILT_IN else locate(name, args.root)
        note = BUILT_IN.get(name) or ("" if place else how_to_get(name))
        found = place is not None or name in BUILT_IN
        entries.append({"name": name, "found": found, "path": str(place) if place else None, "note": note})
    if args.json:
        say_json({"data": entries})
        return 0
    for entry in entries:
        status = "" if entry["found"] else "not found. "
        say(f"{entry['name']:<14} {status}{entry['path'] or entry['note']}")
    return 0

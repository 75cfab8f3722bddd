"""`maxup report [TABLE]`: ours beside the paper's, on the terminal, as plots and as one HTML page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.lab.output import say

EXAMPLES = """examples:
  maxup report                   every table of the paper, and recipes of our own that have results
  maxup report table-cifar10     one table
  maxup report table.yaml        the recipes of a file such as  recipes: [digits/mlp-gaussian, mine.yaml]
tables: {}
"""


def main(argv: Sequence[str]) -> int:
    """Report."""
    from maxup.lab.results.paper import table_names

    parser = parser_of(
        "report",
        "Show our results beside the paper's: tables here, plots and a self-contained page in a folder.",
        EXAMPLES.format(" ".join(table_names())),
    )
    parser.add_argument(
        "table", nargs="?", help="a table of the paper, or a YAML file that lists recipes (default: all)"
    )
    for option, kind, default, what in (
        ("--results", folder, "results/runs", "result files"),
        ("--runs", folder, "runs", "folders of runs, which have the learning curves"),
        ("--out", Path, "out/report", "where report.html and the plots go"),
    ):
        parser.add_argument(
            option, type=kind, default=Path(default), metavar="DIR", help=f"{what} (default: {default})"
        )
    args = parser.parse_args(argv)
    from maxup.lab.report.report import report

    written, notes = report(args.table, results=args.results, runs=args.runs, out=args.out)
    for note in notes:
        say(note)
    say(written)
    return 0


def folder(text: str) -> Path:
    """A folder to read from, named as an option: it must be there."""
    if Path(text).is_dir():
        return Path(text)
    raise argparse.ArgumentTypeError(f"there is no folder {text}")

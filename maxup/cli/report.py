"""Show our results beside the paper's numbers."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import folder, parser_of, wrap
from maxup.lab.output import say

GROUP = "Results"
EXAMPLES = """examples:
  maxup report                   all tables, and other recipes with results
  maxup report table-cifar10     one table
  maxup report table.yaml
    with a file such as  recipes: [digits/mlp-gaussian, mine.yaml]
tables:
{}
"""


def main(argv: Sequence[str]) -> int:
    """Report results."""
    from maxup.lab.results.paper import table_names

    parser = parser_of(
        "report",
        "Show our results beside the paper's numbers. Prints tables, and writes plots and an HTML page to a folder.",
        EXAMPLES.format(wrap(table_names())),
    )
    parser.add_argument(
        "table", nargs="?", help="a table of the paper, or a YAML file that lists recipes (default: all)"
    )
    for option, kind, default, what in (
        ("--results", folder, "results/runs", "folder of the result files"),
        ("--runs", folder, "runs", "folder of the runs, which have the learning curves"),
        ("--out", Path, "out/report", "folder for report.html and the plots"),
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

"""Show your runs, and results beside the paper's numbers."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_json, folder, parser_of, wrap
from maxup.lab.output import say, say_json

GROUP = "Results"
EXAMPLES = """examples:
  maxup report                   your runs, and the tables that have runs
  maxup report --all             also tables of the paper without runs
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
        "Show your runs, and results beside the paper's numbers. Prints tables, and writes plots and an HTML page to a "
        "folder.",
        EXAMPLES.format(wrap(table_names())),
    )
    parser.add_argument(
        "table",
        nargs="?",
        help="a table of the paper, or a YAML file that lists recipes (default: all)",
    )
    parser.add_argument("--all", action="store_true", help="also show tables of the paper without runs")
    for option, kind, default, what in (
        ("--results", folder, "results/runs", "folder of the result files"),
        ("--runs", folder, "runs", "folder of the runs, which have the learning curves"),
        ("--out", Path, "out/report", "folder for report.html and the plots"),
    ):
        parser.add_argument(
            option, type=kind, default=Path(default), metavar="DIR", help=f"{what} (default: {default})"
        )
    add_json(parser)
    args = parser.parse_args(argv)
    from maxup.lab.report.document import document
    from maxup.lab.report.report import collect, write
    from maxup.lab.report.terminal import show

    report = collect(args.table, results=args.results, runs=args.runs, full=args.all)
    written = write(report, args.out)
    if args.json:
        say_json(document(report) | {"page": str(written)})
        return 0
    show(report.comparisons)
    for note in report.notes:
        say(note)
    say(written)
    return 0

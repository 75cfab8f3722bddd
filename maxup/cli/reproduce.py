"""Train all recipes of a table with several seeds."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from maxup.cli.parser import new_folder, parser_of, wrap
from maxup.errors import DataError, RecipeError
from maxup.lab.limits import option as limited
from maxup.lab.output import say

if TYPE_CHECKING:
    from maxup.lab.experiments.jobs import Job

GROUP = "Training"
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup reproduce table-cifar10                         5 seeds, as in the paper
  maxup reproduce table-cifar10 --seeds 3 --budget 0.3  30 % of the epochs
  maxup reproduce table.yaml --dry_run
    with a file such as  recipes: [digits/mlp-gaussian, mine.yaml]
tables:
{}
The same command resumes and skips finished runs. maxup report TABLE shows the
results. Runs with another budget have a separate column.
"""


def main(argv: Sequence[str]) -> int:
    """Train the recipes of a table."""
    from maxup.lab.results.paper import table_names

    parser = parser_of(
        "reproduce",
        "Train the recipes of a table with several seeds each, one run at a time per visible GPU.",
        EXAMPLES.format(wrap(table_names())),
    )
    option = partial(parser.add_argument, metavar="DIR", type=new_folder)
    parser.add_argument("table", help="a table of the paper, or a YAML file that lists recipes")
    parser.add_argument(
        "--seeds", type=limited("reproduce --seeds"), default=5, metavar="N", help="seeds 0 to N - 1 (default: 5)"
    )
    parser.add_argument(
        "--budget",
        type=limited("reproduce --budget"),
        default=1.0,
        metavar="F",
        help="fraction of the epochs (default: 1)",
    )
    option("--out", default=Path("runs"), help="folder for the runs (default: runs)")
    option("--results", default=Path("results/runs"), help="folder for the results (default: results/runs)")
    parser.add_argument("--trackers", default="tensorboard", metavar="NAMES", help="as in maxup train")
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="print the runs and exit")
    args = parser.parse_args(argv)
    from maxup.lab.experiments.jobs import describe, keep, make_jobs, state
    from maxup.lab.report.custom_tables import find_table

    jobs, missing = make_jobs(find_table(args.table), args.seeds, args.budget)
    states = [state(job, args.results) for job in jobs]
    if args.dry_run:
        say("\n".join(describe(jobs, states, missing)))
        return 0
    if not jobs:
        raise RecipeError(f"none of the recipes of {args.table} exist; missing: {', '.join(missing)}")
    say("\n".join(describe([], [], missing)), end="\n" if missing else "")
    problems = [s for s in states if s not in ("done", "to do")]
    todo = [job for job, s in zip(jobs, states, strict=True) if s == "to do"]
    without_data = _without_data(todo)
    problems += without_data.values()
    todo = [job for job in todo if _data_of(job) not in without_data]
    say(f"{len(jobs)} runs, {states.count('done')} done before, {len(todo)} to do", flush=True)
    failures = []
    if todo:
        from maxup.lab.experiments.queue import Task, run_queue, visible_devices

        tasks = []
        for job in todo:
            out = args.out / job.name
            command = [sys.executable, "-P", "-m", "maxup", "train", *job.arguments]  # -P: import nothing from here
            command += ["--out", str(out), "--trackers", args.trackers]
            tasks.append(Task(job.name, command, out, partial(keep, job, out, args.results)))
        failures = run_queue(tasks, visible_devices(), say=partial(say, flush=True))
    for message in problems:
        say(message, file=sys.stderr)
    for failure in failures:
        say(f"{failure.name} {failure.why}", *failure.last_lines, sep="\n    ", file=sys.stderr)
    return 1 if failures or problems else 0


def _data_of(job: "Job") -> tuple[str, str | None]:
    data = job.resolved().data
    return data.name, data.root


def _without_data(jobs: "Sequence[Job]") -> dict[tuple[str, str | None], str]:
    """Return a message for each data set that is missing."""
    from maxup.lab.data.find import find

    messages = {}
    for name, root in dict.fromkeys(map(_data_of, jobs)):
        try:
            find(name, root)
        except DataError as error:
            messages[name, root] = f"runs on {name} are skipped: {error}"
    return messages

"""`maxup reproduce TABLE`: train the recipes of a table with several seeds; killed, the same command goes on."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from maxup.cli.parser import new_folder, parser_of
from maxup.lab.limits import option as limited
from maxup.lab.output import say

if TYPE_CHECKING:
    from maxup.lab.experiments.jobs import Job

EXAMPLES = """examples:
  maxup reproduce table-cifar10                            5 seeds of every recipe, as the paper
  maxup reproduce table-cifar10 --seeds 3 --budget 0.3     with 0.3 of the epochs; a column of its own in the report
  maxup reproduce mytable.yaml --dry_run                   the recipes of a file such as  recipes: [digits/mlp-gaussian]
tables: {}
What is done is skipped, so the same command goes on after an interruption. maxup report TABLE shows the results.
"""


def main(argv: Sequence[str]) -> int:
    """Train a table."""
    from maxup.lab.results.paper import table_names

    parser = parser_of(
        "reproduce",
        "Train the recipes of a table, each with several seeds, one at a time on every visible GPU.",
        EXAMPLES.format(" ".join(table_names())),
    )
    option = partial(parser.add_argument, metavar="DIR", type=new_folder)
    parser.add_argument("table", help="a table of the paper, or a YAML file that lists recipes")
    parser.add_argument(
        "--seeds", type=limited("reproduce --seeds"), default=5, metavar="N", help="seeds 0 to N - 1 (default: 5)"
    )
    parser.add_argument(
        "--budget", type=limited("reproduce --budget"), default=1.0, metavar="F", help="part of the epochs (default: 1)"
    )
    option("--out", default=Path("runs"), help="where runs go (default: runs)")
    option("--results", default=Path("results/runs"), help="where results go (default: results/runs)")
    parser.add_argument("--trackers", default="tensorboard", help="as of maxup train (default: tensorboard)")
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="print the queue, and stop")
    args = parser.parse_args(argv)
    from maxup.errors import TableError
    from maxup.lab.experiments.jobs import describe, jobs_of, keep, state
    from maxup.lab.report.custom_tables import find_table

    jobs, missing = jobs_of(find_table(args.table), args.seeds, args.budget)
    states = [state(job, args.results) for job in jobs]
    if args.dry_run:
        say("\n".join(describe(jobs, states, missing)))
        return 0
    if not jobs:
        raise TableError(f"{args.table} has no recipe that is there yet; missing: {', '.join(missing)}")
    say("\n".join(describe([], [], missing)), end="\n" if missing else "")
    refused = [s for s in states if s not in ("done", "to do")]
    todo = [job for job, s in zip(jobs, states, strict=True) if s == "to do"]
    absent = _absent(todo)
    refused += absent.values()
    todo = [job for job in todo if _data_of(job) not in absent]
    say(f"{len(jobs)} trainings, {states.count('done')} done before, {len(todo)} to do", flush=True)
    failures = []
    if todo:
        from maxup.lab.experiments.queue import Task, run_queue, visible_devices

        tasks = []
        for job in todo:
            out = args.out / job.name
            command = [sys.executable, "-P", "-m", "maxup", "train", *job.arguments]  # -P: not from this folder
            command += ["--out", str(out), "--trackers", args.trackers]
            tasks.append(Task(job.name, command, out, partial(keep, job, out, args.results)))
        failures = run_queue(tasks, visible_devices(), say=partial(say, flush=True))
    for sentence in refused:
        say(sentence, file=sys.stderr)
    for failure in failures:
        say(f"{failure.name} {failure.why}", *failure.last_lines, sep="\n    ", file=sys.stderr)
    return 1 if failures or refused else 0


def _data_of(job: "Job") -> tuple[str, str | None]:
    """The data set a job needs, and where it is said to be."""
    data = job.resolved().data
    return data.name, data.root


def _absent(jobs: "Sequence[Job]") -> dict[tuple[str, str | None], str]:
    """A sentence for each data set that some of them need, and that is not there."""
    from maxup.errors import DataError
    from maxup.lab.data.find import find

    found = {}
    for name, root in dict.fromkeys(map(_data_of, jobs)):
        try:
            find(name, root)
        except DataError as error:
            found[name, root] = f"trainings on {name} are left out: {error}"
    return found

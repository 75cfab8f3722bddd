"""Tables of the files that `benchmarks.speedrun` wrote, for `benchmarks.tables`."""

import math
from collections.abc import Collection

from benchmarks.comparisons import differences, markdown, means
from benchmarks.result_files import SPEED_RUN, compared, origin, result
from maxup.lab.report.tables import format_difference
from maxup.lab.results.comparison import FAST, METRICS, gain, is_maxup
from maxup.lab.results.statistics import estimate, welch

SEEDS = 20  # of every row of a planned table


def planned(name: str, rows: Collection[str]) -> str:
    """A planned table: mean ± std and the interval of the difference from m = 1. Not finished: one line says so.

    A second table has the differences between `fast=True` and the other rows.

    Args:
        name: Name of the result file.
        rows: Names of the rows, as in the command.
    """
    have = result(name)["rows"]
    missing = {row: SEEDS - len(have.get(row, [])) for row in rows}
    if any(missing.values()):
        counts = [f"{row} {SEEDS - n}" for row, n in missing.items()]
        return f"Not finished. Seeds done, of {SEEDS} per row: {', '.join(counts)}."
    found = compared(name)
    runs = found["runs"]
    ours = next(row for row in runs if is_maxup(row) and row.endswith(FAST))
    pairs = {(ours, row): gain(runs[ours], runs[row], paired=found["paired"]) for row in runs if row != ours}
    command = found["environment"]["command"].replace(" --data data", " --data DIR")
    parts = [markdown(means(found, METRICS)), f"`{command}` {origin(found['environment'])}"]
    return "\n\n".join([*parts, markdown(differences(found, pairs, METRICS))])


def with_flip(other: str) -> str:
    """The difference in accuracy with test-time flip between m = 4 with `fast=True` and another row."""
    rows = compared(SPEED_RUN)["runs"]
    values = ([run["accuracy_flip"] for run in rows[name]] for name in (f"m = 4{FAST}", other))
    return format_difference(welch(*values), METRICS["clean"].decimals, SEEDS)


def exploratory() -> str:
    """The exploratory speed run: mean and standard error per row."""
    rows = {
        "m1": "m = 1", "m1x1.5": "m = 1, 1.5 times the epochs", "m1x2": "m = 1, twice the epochs", "m2": "m = 2",
        "m4": "m = 4", "proxy4": "m = 4, scored by a proxy", "proxy16": "m = 16, scored by a proxy",
        "low4": "m = 4, scored at 24 pixels",
    }  # fmt: skip
    lines = ["| row | training seconds | test accuracy [%] | with test-time flip [%] | n |", "|---|---|---|---|---|"]
    for name, title in rows.items():
        runs, cells = result("speedrun-cutout")["rows"][name], []
        for metric in ("seconds", "accuracy", "accuracy_flip"):
            found = estimate([run[metric] for run in runs])
            assert found is not None
            assert found.std is not None
            error = "" if metric == "seconds" else f" ± {found.std / math.sqrt(found.n):.2f}"
            cells.append(f"{found.mean:.2f}{error}")
        lines.append(f"| {title} | {' | '.join(cells)} | {len(runs)} |")
    return "\n".join(lines) + f"\n\n{origin(result('speedrun-cutout')['environment'])}"

"""Tables of the files that `benchmarks.speedrun` wrote, for `benchmarks.tables`."""

import math
from typing import Any

from benchmarks.result_files import origin, result
from benchmarks.speedrun_rows import Row, equal_time
from maxup.lab.report.tables import format_difference, format_estimate
from maxup.lab.results.statistics import estimate, welch

SEEDS = 20  # of every row of a planned table
TITLES = {"m": "m = {}", "fast": "m = {}, `fast=True`", "easy": "easiest of {}", "avg": "average of {}"}
METRICS = {"seconds": "seconds", "accuracy": "test accuracy [%]", "accuracy_flip": "with test-time flip [%]"}


def planned(name: str, rows: tuple[str, ...]) -> str:
    """A planned table: mean ± std and the difference from m = 1 per row. If it is not finished, one line says so.

    Args:
        name: Name of the result file.
        rows: Names of the rows, as in the command.
    """
    found = result(name)
    have: dict[str, list[dict[str, Any]]] = found["rows"]
    missing = {row: SEEDS - len(have.get(row, [])) for row in rows}
    if any(missing.values()):
        counts = [f"{row} {SEEDS - n}" for row, n in missing.items()]
        return f"Not finished. Seeds done, of {SEEDS} per row: {', '.join(counts)}."
    titles = {row: _title(row, have) for row in rows}
    lines = [f"| row | {' | '.join(METRICS.values())} | minus m = 1 |", "|---" * 5 + "|"]
    for row, title in titles.items():
        values = ([run[metric] for run in have[row]] for metric in METRICS)
        cells = [format_estimate(estimate(value), 2).removesuffix(f" (n = {SEEDS})") for value in values]
        lines.append(f"| {title} | {' | '.join(cells)} | {_minus(have, row, rows[0])} |")
    ours = next(row for row in rows if row.startswith("fast"))
    others = [row for row in rows if row not in (ours, rows[0])]
    lines += ["", "| difference in test accuracy | |", "|---|---|"]
    lines += [f"| {titles[ours]} minus {titles[row]} | {_minus(have, ours, row)} |" for row in others]
    return "\n".join(lines) + f"\n\nMean ± std of {SEEDS} seeds. {origin(found['environment'])}"


def _title(row: str, have: dict[str, list[dict[str, Any]]]) -> str:
    """Return the title of a row. One with m = 1 and more epochs has the time of the row that sets its epochs."""
    parsed = Row.parse(row)
    if parsed.factor == 1:
        return TITLES[parsed.kind].format(parsed.m)
    other = next(name for name in have if name != row and equal_time(have, name) == row)
    return f"m = 1, time of {_title(other, have)}"


def _minus(have: dict[str, list[dict[str, Any]]], ours: str, other: str) -> str:
    """Return the difference of two rows with Welch's interval, or "" for the same row."""
    values = ([run["accuracy"] for run in have[row]] for row in (ours, other))
    return "" if ours == other else format_difference(welch(*values), 2, SEEDS)


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

"""The report as plain data, for `maxup report --json`."""

from dataclasses import asdict
from typing import Any

from maxup.lab.report.report import Report
from maxup.lab.results.tables import Comparison, Line


def document(report: Report) -> dict[str, Any]:
    """Return the tables of a report, the names of the tables that are left out, and the notes."""
    return {
        "tables": [_table(comparison) for comparison in report.comparisons],
        "tables_without_runs": report.without_runs,
        "notes": report.notes,
    }


def _table(comparison: Comparison) -> dict[str, Any]:
    table = comparison.table
    return {
        "name": comparison.name,
        "number": table.number or None,
        "caption": table.caption,
        "unit": table.unit,
        "better": table.better,
        "rows": [_row(line) for line in comparison.lines],
    }


def _row(line: Line) -> dict[str, Any]:
    """Return a row. Numbers are in the unit of the table; `ours` has one entry per budget."""
    row = line.row
    return {
        "key": line.key,
        "model": row.model,
        "method": row.method,
        "recipe": row.recipe,
        "m": row.m,
        "metric": line.metric,
        "paper": None if line.paper is None else {"mean": line.paper.mean, "std": line.paper.std},
        "ours": [
            {
                "budget": budget,
                **asdict(estimate),
                "values": {str(seed): value for seed, value in line.values[budget].items()},
                "difference": asdict(line.differences[budget]) if budget in line.differences else None,
                "seconds": line.seconds.get(budget),
            }
            for budget, estimate in line.ours.items()
        ],
    }

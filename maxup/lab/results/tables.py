"""Our results for each row of a table, with the paper's numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from maxup.lab.recipes.load import run_name
from maxup.lab.results.files import Result, known_recipe, mean_seconds
from maxup.lab.results.paper import Row, Table, Value
from maxup.lab.results.statistics import Difference, Estimate, difference, estimate


@dataclass(frozen=True)
class Line:
    """One metric of one row: the paper's number, and ours by budget."""

    key: str
    row: Row
    metric: str
    paper: Value | None
    paper_difference: float | None
    values: dict[float, dict[int, float]]
    """Our values, by budget and seed."""
    ours: dict[float, Estimate]
    differences: dict[float, Difference]
    """Differences from the baseline."""
    seconds: dict[float, float]
    """Mean training time of our runs."""
    models: dict[float, list[tuple[str, int]]]
    """Recipe and m of our runs. If there are several, `ours` is the best of them in this metric."""


@dataclass(frozen=True)
class Comparison:
    """A table with our results."""

    name: str
    table: Table
    lines: list[Line]
    budgets: list[float]
    """Budgets of our runs. 1 is always included, and first."""


def compare(name: str, table: Table, results: Iterable[Result]) -> Comparison:
    """Find our results for every row and metric of a table."""
    results = list(results)
    ours = {key: [r for r in results if belongs(r, row)] for key, row in table.rows.items()}
    budgets = sorted({r.budget for rows in ours.values() for r in rows} - {1.0}, reverse=True)
    lines = [
        _line(table, key, metric, ours[key], ours.get(row.baseline or "", []))
        for key, row in table.rows.items()
        for metric in table.metrics
    ]
    return Comparison(name, table, lines, [1.0, *budgets])


def belongs(result: Result, row: Row) -> bool:
    """Whether a result belongs to a row."""
    if row.recipe is None or result.recipe not in (run_name(row.recipe), *row.grid):
        return False
    if row.copies:
        return result.m in row.copies
    return result.default_m if row.m is None else result.m == row.m


def measured(result: Result, row: Row, metric: str) -> float | None:
    """Return our value for a metric of the paper: accuracies in %, perplexities unchanged. None if it is missing."""
    last = result.last
    match metric:
        case "top1" | "top5":
            accuracy = last.get("test_accuracy" if metric == "top1" else "test_top5_accuracy")
            return None if accuracy is None else 100 * accuracy
        case "valid" | "test":
            split = "validation" if metric == "valid" else "test"
            return last.get(f"{split}_{'dynamic_' if row.dynamic else ''}perplexity")
        case radius:
            accuracy = last.get(f"certified_accuracy_{radius}")
            return None if accuracy is None or float(radius) > result.reach else 100 * accuracy


def _line(table: Table, key: str, metric: str, ours: list[Result], baseline: list[Result]) -> Line:
    row = table.rows[key]
    base = table.rows[row.baseline] if row.baseline else None
    paper, before = row.values.get(metric), base.values.get(metric) if base else None
    values = _by_seed(ours, row, metric)
    base_values = _by_seed(baseline, base, metric) if base else {}
    return Line(
        key, row, metric, paper,
        paper_difference=paper.mean - before.mean if paper and before else None,
        values=values,
        ours={b: e for b, v in values.items() if (e := estimate(list(v.values())))},
        differences={b: d for b, v in values.items() if (d := _difference(row, v, base_values.get(b, {})))},
        seconds={b: s for b in values if (s := mean_seconds([r for r in ours if r.budget == b])) is not None},
        models={
            b: sorted({(r.recipe, r.m) for r in ours if r.budget == b and measured(r, row, metric) is not None})
            for b in values
        },
    )  # fmt: skip


def _by_seed(results: Iterable[Result], row: Row, metric: str) -> dict[float, dict[int, float]]:
    values: dict[float, dict[int, float]] = {}
    for result in results:
        if (value := measured(result, row, metric)) is not None:
            seeds = values.setdefault(result.budget, {})
            seeds[result.seed] = max(value, seeds.get(result.seed, value))  # for a grid, the best
    return values


def _difference(row: Row, ours: dict[int, float], baseline: dict[int, float]) -> Difference | None:
    """Paired only if a seed selects the training images, so that both runs of a seed share them."""
    known = known_recipe(row.recipe) if row.recipe else None
    return difference(ours, baseline, paired=known is not None and known.data.train_size is not None)

"""Make a report from result files: tables, plots and an HTML page."""

import glob
from dataclasses import dataclass
from pathlib import Path

from maxup.lab.recipes.load import run_name
from maxup.lab.report.curves import cut_short
from maxup.lab.report.custom_tables import find_table, other_results, with_other_m
from maxup.lab.report.page import page
from maxup.lab.report.plots import plots
from maxup.lab.results.files import Result, load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import Comparison, compare
from maxup.lab.storage.atomic_io import make_folder, remove_leftovers, replace


@dataclass(frozen=True)
class Report:
    """What `report` shows: your runs first, then the paper's tables."""

    comparisons: list[Comparison]
    without_runs: list[str]
    """Names of the paper's tables without runs, which are left out."""
    results: list[Result]
    notes: list[str]
    """A message for each file that is skipped or incomplete, and about what is left out."""


def collect(name: str | None, *, results: Path, runs: Path, full: bool = False) -> Report:
    """Load the results and compare them with the paper's numbers.

    Args:
        name: A table of the paper or a file that lists recipes. None: your runs, and all tables.
        results: Folder of result files.
        runs: Folder of runs.
        full: Whether to include tables of the paper without runs. A table that is named is always included.
    """
    tables = load_paper() if name is None else {Path(name).stem: find_table(name)}
    recipes = {run_name(r): r for table in tables.values() for row in table.rows.values() if (r := row.recipe)}
    found, notes = load_results(results, runs, recipes, by_recipe=True)
    notes += [note for result in found if (note := cut_short(result))]
    tables = {key: with_other_m(table, found) for key, table in tables.items()}
    without_runs: list[str] = []
    if name is None:
        yours = {
            "your-runs": other_results(found, tables.values()),
            "your-text-runs": other_results(found, tables.values(), text=True),
        }
        comparisons = [compare(key, table, found) for key, table in tables.items()]
        without_runs = [] if full else [one.name for one in comparisons if not any(line.ours for line in one.lines)]
        comparisons = [
            *(compare(key, table, found) for key, table in yours.items() if table),
            *(one for one in comparisons if one.name not in without_runs),
        ]
    else:
        changed = [r for r in found if r.name in recipes and r.recipe not in recipes]
        notes += [f"seed {r.seed} of {r.name} is not in this table: it was trained with {r.variant}" for r in changed]
        found = [result for result in found if result.recipe in recipes]
        comparisons = [compare(key, table, found) for key, table in tables.items()]
    if not found:
        notes.append(f"no results in {results} and {runs}; --results and --runs name other folders")
    if without_runs:
        notes.append(f"{len(without_runs)} tables of the paper without runs: --all shows them")
    return Report(comparisons, without_runs, found, notes)


def write(report: Report, out: Path) -> Path:
    """Write the plots and the HTML page to a folder, and return the path of the page."""
    drawn = {comparison.name: plots(comparison, report.results) for comparison in report.comparisons}
    make_folder(out)
    remove_leftovers(out, "report.html")
    for plot in (plot for several in drawn.values() for plot in several):
        remove_leftovers(out, f"{glob.escape(plot.name)}.*")
        plot.save(out)
    replace(out / "report.html", page(report.comparisons, drawn, report.results, report.notes).encode())
    return out / "report.html"

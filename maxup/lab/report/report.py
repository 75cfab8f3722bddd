"""Make a report from result files: tables on the terminal, plots and an HTML page."""

import glob
from pathlib import Path

from maxup.lab.recipes.load import run_name
from maxup.lab.report.curves import cut_short
from maxup.lab.report.custom_tables import find_table, other_results, with_other_m
from maxup.lab.report.page import page
from maxup.lab.report.plots import plots
from maxup.lab.report.terminal import show
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from maxup.lab.storage.atomic_io import make_folder, remove_leftovers, replace


def report(name: str | None, *, results: Path, runs: Path, out: Path) -> tuple[Path, list[str]]:
    """Print tables, and write the plots and the page.

    Args:
        name: A table of the paper or a file that lists recipes. None: all tables.
        results: Folder of result files.
        runs: Folder of runs.
        out: Folder for the plots and the page.

    Returns:
        The path of the page, and a message for each file that is skipped or incomplete.
    """
    tables = load_paper() if name is None else {Path(name).stem: find_table(name)}
    recipes = {run_name(r): r for table in tables.values() for row in table.rows.values() if (r := row.recipe)}
    found, notes = load_results(results, runs, recipes)
    notes += [note for result in found if (note := cut_short(result))]
    tables = {key: with_other_m(table, found) for key, table in tables.items()}
    others = {"others": other_results(found, tables.values()), "text": other_results(found, tables.values(), text=True)}
    if name is None and any(others.values()):
        tables |= {key: table for key, table in others.items() if table}
    else:
        found = [result for result in found if result.recipe in recipes]
    comparisons = [compare(key, table, found) for key, table in tables.items()]
    drawn = {comparison.name: plots(comparison, found) for comparison in comparisons}
    make_folder(out)
    remove_leftovers(out, "report.html")
    for plot in (plot for several in drawn.values() for plot in several):
        remove_leftovers(out, f"{glob.escape(plot.name)}.*")
        plot.save(out)
    replace(out / "report.html", page(comparisons, drawn, found, notes).encode())
    show(comparisons)
    return out / "report.html", notes

"""The robustness of a run as a table: accuracy by strength of each corruption and of the attack, and calibration."""

from typing import Any

from maxup.lab.report.terminal import show_table, wide_console
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.robustness.measure import average


def show(found: dict[str, Any]) -> None:
    """Print what `measure` returned, with the strengths below the table."""
    console = wide_console()
    show_table(console, f"Robustness on {found['images']:,} test images, accuracy in % by strength", *table(found))
    pgd = found["pgd"]
    for name, levels in found["corruptions"].items():
        console.print(f"  {name}: {CORRUPTIONS[name].unit} {_listed(levels)}", style="dim")
    console.print(f"  PGD: {pgd['steps']} steps, l{pgd['p']} radius {_listed(pgd['levels'])}", style="dim")


def table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows: accuracy by strength, and the mean of each metric over the strengths."""
    pgd = found["pgd"]["levels"]
    headings = ["method", *(str(k + 1) for k in range(len(pgd))), "mean", "ECE [%]", "NLL"]
    empty = [""] * len(pgd)
    rows = [["clean", *empty, *_metrics(found["clean"])]]
    rows += [_row(name, levels) for name, levels in found["corruptions"].items()]
    rows += [["all corruptions", *empty, *_metrics(found["corrupted"])], _row("PGD", pgd)]
    return headings, rows


def _row(name: str, levels: list[dict[str, float]]) -> list[str]:
    return [name, *(f"{100 * one['accuracy']:.2f}" for one in levels), *_metrics(average(levels))]


def _metrics(metrics: dict[str, float]) -> list[str]:
    return [f"{100 * metrics['accuracy']:.2f}", f"{100 * metrics['ece']:.2f}", f"{metrics['nll']:.4f}"]


def _listed(levels: list[dict[str, float]]) -> str:
    return ", ".join(f"{one['level']:g}" for one in levels)

"""Certified accuracy against the radius: of one or several TSVs, as a table beside the paper's rows, and as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxup.certify.analysis import RADII, Share, abstained, average_radius, certified_accuracy, envelope
from maxup.certify.rows import Row
from maxup.report.figure import COLOURS, STYLE
from maxup.report.paper import load_paper

Table = tuple[dict[str, Any], Sequence[Row]]  # what a TSV is about, and its rows


def names(tables: Sequence[Table]) -> list[str]:
    """A name for each: what was certified and its sigma, without the folders that all have in common.

    Example:
        >>> names([({"subject": "runs/a/seed-0", "sigma": 0.5}, []), ({"subject": "runs/b/seed-0", "sigma": 0.25}, [])])
        ['a, sigma 0.5', 'b, sigma 0.25']
    """
    parts = [list(Path(str(about.get("subject", "?"))).parts) for about, _ in tables]
    for end in (0, -1):
        while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
            for part in parts:
                part.pop(end)
    found = [f"{'/'.join(part)}, sigma {about['sigma']:g}" for part, (about, _) in zip(parts, tables, strict=True)]
    return [name if found.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(found, 1)]


def columns(tables: Sequence[Table]) -> list[tuple[str, list[str]]]:
    """The table, column by column: a heading, then a text for every radius, the average radius, abstentions, images."""
    radii = [0.0, *RADII]
    named = dict(zip(names(tables), [rows for _, rows in tables], strict=True))
    out = [("radius", [f"{radius:g}" for radius in radii] + ["average radius", "abstained", "images"])]
    for name, rows in named.items():
        more = [f"{average_radius(rows):.3f}", f"{100 * abstained(rows):.1f}", str(len(rows))]
        out.append((name, [_percent(certified_accuracy(rows, radius)) for radius in radii] + more))
    if len(named) > 1:
        best = [_percent(share) for _, share in envelope(named, radii).values()]
        out.append(("best at each", [*best, "", "", ""]))
    if all("airplane" in about.get("classes", []) for about, _ in tables):  # CIFAR-10, as the paper's
        for row in load_paper()["table-certified"].rows.values():
            values = [f"{row.values[str(radius)].mean:.0f}" for radius in RADII]
            out.append((f"paper: {row.method.partition(' (')[0]}", ["", *values, "", "", ""]))
    return out


def show(tables: Sequence[Table]) -> None:
    """Print the table; percent, with standard errors of the images."""
    from rich.console import Console
    from rich.table import Table as Rich

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200, no_color=True)
    grid = columns(tables)
    printed = Rich(box=None, pad_edge=False, header_style="bold")
    for heading, _ in grid:
        printed.add_column(heading, justify="left" if heading == "radius" else "right")
    for cells in zip(*(texts for _, texts in grid), strict=True):
        printed.add_row(*cells)
    console.print("Certified accuracy [%] by l2 radius, ± standard error", style="bold")
    console.print(printed)


def draw(path: Path, tables: Sequence[Table]) -> None:
    """Plot certified accuracy against the radius, a line with its 95 % band for every table, the paper's rows dashed.

    Args:
        path: Where; the ending, such as .png, says the format.
        tables: What to draw.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        last = max((row.radius for _, rows in tables for row in rows if row.correct), default=0.0)
        radii = [last * 1.02 * k / 400 for k in range(401)]
        for number, (name, (_, rows)) in enumerate(zip(names(tables), tables, strict=True)):
            shares = [certified_accuracy(rows, radius) for radius in radii]
            colour = COLOURS[(number + 1) % len(COLOURS)]
            low, high = [100 * s.low for s in shares], [100 * s.high for s in shares]
            axes.fill_between(radii, low, high, color=colour, alpha=0.15, linewidth=0, step="post")
            axes.step(radii, [100 * s.mean for s in shares], where="post", color=colour, label=name)
        if all("airplane" in about.get("classes", []) for about, _ in tables):
            for row, style in zip(load_paper()["table-certified"].rows.values(), (":", "-.", "--"), strict=True):
                values = [row.values[str(radius)].mean for radius in RADII]
                axes.plot(RADII, values, style, color=COLOURS[0], label=f"paper: {row.method.partition(' (')[0]}")
        axes.set(
            xlabel="l2 radius, of pixels in [0, 1]", ylabel="certified accuracy [%]", ylim=(0, 100), xlim=(0, None)
        )
        figure.legend(loc="outside lower center", ncols=2 if len(tables) < 5 else 3)
        figure.savefig(path, dpi=160)


def _percent(share: Share) -> str:
    return f"{100 * share.mean:.1f} ± {100 * share.error:.1f}"

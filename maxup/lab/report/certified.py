"""Certified accuracy against the radius: of one or several TSVs, as a table beside the paper's rows, and as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxup.lab.certify.analysis import RADII, Share, abstained, average_radius, certified_accuracy, envelope
from maxup.lab.certify.tsv import Row, missing
from maxup.lab.report.figure import COLORS, STYLE, save_figure
from maxup.lab.report.tables import against
from maxup.lab.report.terminal import show_table, wide_console
from maxup.lab.results.paper import load_paper
from maxup.lab.results.statistics import paired_t
from maxup.smoothing.sampling import plan, reach

Table = tuple[dict[str, Any], Sequence[Row]]  # what a TSV is about, with the file's own name, and its rows
SETTINGS = ("n", "alpha", "sampling", "radii", "dtype", "forward", "seed")  # that shift a radius
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def names(tables: Sequence[Table]) -> list[str]:
    """A name for each: what was certified, or else the file, without what all have in common; sigma where they differ.

    Example:
        >>> names([({"subject": "runs/a/seed-0", "sigma": 0.5}, []), ({"subject": "runs/b/seed-0", "sigma": 0.25}, [])])
        ['a, sigma 0.5', 'b, sigma 0.25']
    """
    ends = ["" if _sigma(tables) else f", sigma {about['sigma']:g}" for about, _ in tables]
    for key in ("subject", "file"):
        parts = [list(Path(str(about.get(key, "?"))).parts) for about, _ in tables]
        for end in (0, -1):
            while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
                for part in parts:
                    part.pop(end)
        found = [("/".join(part) or ".") + end for part, end in zip(parts, ends, strict=True)]
        if len(set(found)) == len(found):
            break
    return found


def columns(tables: Sequence[Table]) -> list[tuple[str, list[str]]]:
    """The table, column by column: a heading, then a text for every radius, the average radius, abstentions, images.

    Radii that no table can reach are left out; of adaptive sampling only the radii asked for are known.
    """
    radii, _ = _split(tables)
    average = any(about["radii"] is None for about, _ in tables)
    more = ["average radius"] * average + ["abstained [%]", "images"]
    out = [("radius", [f"{radius:g}" for radius in radii] + more)]
    for name, (about, rows) in zip(names(tables), tables, strict=True):
        cells = [
            "" if not _known(about, radius) else "out of reach" if radius > _reach(about)
            else _percent(certified_accuracy(rows, radius)) for radius in radii
        ]  # fmt: skip
        if average:
            cells.append(f"{average_radius(rows):.3f}" if about["radii"] is None else "")
        out.append((name, [*cells, f"{100 * abstained(rows):.1f}", missing(about, rows) or str(len(rows))]))
    rest = [""] * len(more)
    if len(tables) > 1 and not _other_images(tables):
        best = []
        for radius in radii:
            known = {str(i): rows for i, (about, rows) in enumerate(tables) if _known(about, radius)}
            best.append(_percent(envelope(known, [radius])[radius][1]))
        out.append(("best at each", best + rest))
    for name, values in _paper(tables).items():
        out.append((name, [f"{values[radius]:.0f}" if radius in values else "" for radius in radii] + rest))
    return out


def notes(tables: Sequence[Table]) -> list[str]:
    """What a reader of the table must know: what is left out, and how the files differ, in a line each."""
    found = [
        f"{about['file']} covers {part} images; run the same command to finish it."
        for about, rows in tables
        if (part := missing(about, rows))
    ]
    if beyond := _split(tables)[1]:
        found.append(f"Out of reach of n, alpha and sigma, and left out: {', '.join(f'{r:g}' for r in beyond)}.")
    if len(tables) > 1 and (why := _other_images(tables)):
        found.append(f"There is no best at each radius, and no difference: {why}.")
    values = {key: dict.fromkeys(str(about[key]) for about, _ in tables) for key in SETTINGS}
    if differ := [f"{key} ({'; '.join(their)})" for key, their in values.items() if len(their) > 1]:
        found.append(f"The files differ in {', '.join(differ)}.")
    return found


def differences(tables: Sequence[Table]) -> list[tuple[str, list[str]]]:
    """What each further table has more than the first, in points: a heading, then a text for every radius.

    Paired image by image, with Student's 95 % interval from 3 images on; "equal" where no image differs, empty at a
    radius that one of the two does not know or cannot reach. Nothing where the tables are of other images.
    """
    if _other_images(tables):
        return []
    (first, base), *others = tables
    out = []
    for name, (about, rows) in zip(names(tables)[1:], others, strict=True):
        cells = []
        for radius in _split(tables)[0]:
            known = all(_known(a, radius) and radius <= _reach(a) for a in (first, about))
            mine, theirs = ({row.idx: 100.0 * row.certified(radius) for row in found} for found in (rows, base))
            cells.append(
                "" if not known else "equal" if mine == theirs else against(paired_t(mine, theirs), 1, len(rows))
            )
        out.append((name, cells))
    return out


def _reach(about: dict[str, Any]) -> float:
    return reach(plan(about["n"], about["alpha"], early=about["sampling"] != "fixed"), about["sigma"])


def _paper(tables: Sequence[Table]) -> dict[str, dict[float, float]]:
    """The paper's rows, by radius, where all tables are of CIFAR-10 as they are."""
    if any(about.get("classes") != CIFAR10 for about, _ in tables):
        return {}
    rows = load_paper()["table-certified"].rows.values()
    return {f"paper: {row.method.partition(' (')[0]}": {r: row.values[str(r)].mean for r in RADII} for row in rows}


def _sigma(tables: Sequence[Table]) -> str:
    """Such as ", sigma 0.5", where it is one for all."""
    (sigma, *others) = {about["sigma"] for about, _ in tables}
    return "" if others else f", sigma {sigma:g}"


def _split(tables: Sequence[Table]) -> tuple[list[float], list[float]]:
    """The radii that some table knows and can reach, and the others."""
    wanted = sorted({radius for about, _ in tables for radius in _radii(about)})
    shown = [r for r in wanted if any(_known(about, r) and r <= _reach(about) for about, _ in tables)]
    return shown, [r for r in wanted if r not in shown]


def _radii(about: dict[str, Any]) -> list[float]:
    return [0.0, *(RADII if about["radii"] is None else about["radii"])]


def _known(about: dict[str, Any], radius: float) -> bool:
    return about["radii"] is None or radius in _radii(about)


def _other_images(tables: Sequence[Table]) -> str | None:
    """Why shares of these tables cannot be compared, or None."""
    if len({about["images"] for about, _ in tables}) > 1:
        return "the files are of different data"
    if len({frozenset(row.idx for row in rows) for _, rows in tables}) > 1:
        return "the files hold different images of the data"
    return None


def show(tables: Sequence[Table]) -> None:
    """Print the table; percent, with standard errors of the images."""
    console = wide_console()
    found = columns(tables)
    grids = {f"Certified accuracy [%] by l2 radius{_sigma(tables)}, ± standard error": found}
    if more := differences(tables):
        grids[f"Minus {found[1][0]}: points, image by image [95 % interval]"] = [found[0], *more]
    for title, grid in grids.items():
        headings, texts = zip(*grid, strict=True)
        show_table(console, title, headings, list(zip(*texts, strict=False)))  # of radii, as many as there are
    for note in notes(tables):
        console.print(note)


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
        for number, (name, (about, rows)) in enumerate(zip(names(tables), tables, strict=True)):
            name += f" ({part} images)" if (part := missing(about, rows)) else ""
            color = COLORS[(number + 1) % len(COLORS)]
            if about["radii"] is not None:  # between them nothing is known
                asked = sorted({radius for radius in _radii(about) if radius <= _reach(about)})
                points = [certified_accuracy(rows, radius) for radius in asked]
                errors = [[100 * (s.mean - s.low) for s in points], [100 * (s.high - s.mean) for s in points]]
                axes.errorbar(asked, [100 * s.mean for s in points], errors, fmt="o", color=color, label=name)
                continue
            within = [radius for radius in radii if radius <= _reach(about)]
            shares = [certified_accuracy(rows, radius) for radius in within]
            low, high = [100 * s.low for s in shares], [100 * s.high for s in shares]
            axes.fill_between(within, low, high, color=color, alpha=0.15, linewidth=0, step="post")
            axes.step(within, [100 * s.mean for s in shares], where="post", color=color, label=name)
        for (name, values), style in zip(_paper(tables).items(), (":", "-.", "--"), strict=False):
            axes.plot(*zip(*values.items(), strict=True), style, color=COLORS[0], label=name)
        axes.set(
            xlabel=f"l2 radius, of pixels in [0, 1]{_sigma(tables)}", ylabel="certified accuracy [%]",
            ylim=(0, 100), xlim=(0, None),
        )  # fmt: skip
        figure.legend(loc="outside lower center", ncols=2 if len(tables) < 5 else 3)
        save_figure(figure, path, dpi=160)


def _percent(share: Share) -> str:
    return f"{100 * share.mean:.1f} ± {100 * share.error:.1f}"

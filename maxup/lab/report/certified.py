"""Certified accuracy by radius for one or more TSVs, as a table with the paper's rows and as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxup.lab.certify.analysis import RADII, Proportion, abstained, average_radius, certified_accuracy
from maxup.lab.certify.tsv import Row, unfinished
from maxup.lab.report.figure import COLORS, STYLE, save_figure
from maxup.lab.report.tables import format_difference
from maxup.lab.report.terminal import show_table, wide_console
from maxup.lab.results.paper import load_paper
from maxup.lab.results.statistics import paired_t
from maxup.smoothing.sampling import max_radius, plan

Table = tuple[dict[str, Any], Sequence[Row]]  # the header of a TSV plus "file", its path; and its rows
SETTINGS = ("n", "alpha", "sampling", "radii", "dtype", "forward", "seed")  # they affect radii
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def names(tables: Sequence[Table]) -> list[str]:
    """Return a short name per table: the network or the file, without common parts, and sigma if it differs."""
    ends = ["" if _sigma(tables) else f", sigma {header['sigma']:g}" for header, _ in tables]
    for key in ("subject", "file"):
        parts = [list(Path(str(header.get(key, "?"))).parts) for header, _ in tables]
        for end in (0, -1):
            while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
                for part in parts:
                    part.pop(end)
        short = [str(Path(*part)) + end for part, end in zip(parts, ends, strict=True)]
        if len(set(short)) == len(short):
            break
    return short


def columns(tables: Sequence[Table]) -> list[tuple[str, list[str]]]:
    """Return the columns as (heading, cells): one cell per radius, then average radius, abstentions and images.

    Radii above the maximum of every table are skipped. With adaptive sampling, only the requested radii are shown.
    """
    radii, _ = _split(tables)
    average = any(header["radii"] is None for header, _ in tables)
    extra = [*(["average radius"] if average else []), "abstained [%]", "images"]
    out = [("radius", [f"{radius:g}" for radius in radii] + extra)]
    for name, (header, rows) in zip(names(tables), tables, strict=True):
        cells = [
            "" if not _known(header, radius) else "not reachable" if radius > _reach(header)
            else _percent(certified_accuracy(rows, radius)) for radius in radii
        ]  # fmt: skip
        if average:
            cells.append(f"{average_radius(rows):.3f}" if header["radii"] is None else "")
        out.append((name, [*cells, f"{100 * abstained(rows):.1f}", unfinished(header, rows) or str(len(rows))]))
    rest = [""] * len(extra)
    if len(tables) > 1 and not _other_images(tables):
        shares = [[certified_accuracy(rows, r) for header, rows in tables if _known(header, r)] for r in radii]
        # Optimistic, as in the paper: the best one is selected on the images that it is reported on.
        best = [_percent(max(one, key=lambda share: share.mean)) for one in shares]
        out.append(("best at each", best + rest))
    for name, values in _paper(tables).items():
        out.append((name, [f"{values[radius]:.0f}" if radius in values else "" for radius in radii] + rest))
    return out


def notes(tables: Sequence[Table]) -> list[str]:
    """Return notes on the table: what is missing, and how the files differ."""
    found = [
        f"{header['file']} covers {part} images; run the same command to finish it."
        for header, rows in tables
        if (part := unfinished(header, rows))
    ]
    if beyond := _split(tables)[1]:
        found.append(f"Not shown, because n, alpha and sigma cannot reach them: {', '.join(f'{r:g}' for r in beyond)}.")
    if len(tables) > 1 and (why := _other_images(tables)):
        found.append(f"No best model and no differences are shown: {why}.")
    values = {key: dict.fromkeys(str(header[key]) for header, _ in tables) for key in SETTINGS}
    if differ := [f"{key} ({'; '.join(their)})" for key, their in values.items() if len(their) > 1]:
        found.append(f"The files differ in {', '.join(differ)}.")
    return found


def differences(tables: Sequence[Table]) -> list[tuple[str, list[str]]]:
    """Return the difference between each further table and the first, in percentage points, as (heading, cells).

    Differences are paired by image, with Student's 95 % interval for 3 or more images. A cell is "equal" if no image
    differs, and empty if one of the two has no value at the radius. The list is empty if the tables
    have different images.
    """
    if _other_images(tables):
        return []
    (first, base), *others = tables
    out = []
    for name, (header, rows) in zip(names(tables)[1:], others, strict=True):
        cells = []
        for radius in _split(tables)[0]:
            known = all(_known(a, radius) and radius <= _reach(a) for a in (first, header))
            mine, theirs = ({row.idx: 100.0 * row.certified(radius) for row in found} for found in (rows, base))
            cells.append(
                ""
                if not known
                else "equal"
                if mine == theirs
                else format_difference(paired_t(mine, theirs), 1, len(rows))
            )
        out.append((name, cells))
    return out


def _reach(header: dict[str, Any]) -> float:
    return max_radius(plan(header["n"], header["alpha"], early=header["sampling"] != "fixed"), header["sigma"])


def _paper(tables: Sequence[Table]) -> dict[str, dict[float, float]]:
    """Return the paper's rows by radius, if all tables are for CIFAR-10."""
    if any(header.get("classes") != CIFAR10 for header, _ in tables):
        return {}
    rows = load_paper()["table-certified"].rows.values()
    return {f"paper: {row.method.partition(' (')[0]}": {r: row.values[str(r)].mean for r in RADII} for row in rows}


def _sigma(tables: Sequence[Table]) -> str:
    """Return text such as ", sigma 0.5" if all tables have the same sigma."""
    (sigma, *others) = {header["sigma"] for header, _ in tables}
    return "" if others else f", sigma {sigma:g}"


def _split(tables: Sequence[Table]) -> tuple[list[float], list[float]]:
    """Return the radii that some table knows and can reach, and the other radii."""
    radii = sorted({radius for header, _ in tables for radius in _radii(header)})
    shown = [r for r in radii if any(_known(header, r) and r <= _reach(header) for header, _ in tables)]
    return shown, [r for r in radii if r not in shown]


def _radii(header: dict[str, Any]) -> list[float]:
    return [0.0, *(RADII if header["radii"] is None else header["radii"])]


def _known(header: dict[str, Any], radius: float) -> bool:
    return header["radii"] is None or radius in _radii(header)


def _other_images(tables: Sequence[Table]) -> str | None:
    """Return why these tables cannot be compared, or None."""
    if len({header["images"] for header, _ in tables}) > 1:
        return "the files have different data"
    if len({frozenset(row.idx for row in rows) for _, rows in tables}) > 1:
        return "the files have different images of the same data"
    return None


def show(tables: Sequence[Table]) -> None:
    """Print the tables: accuracies in percent with standard errors over images, and differences."""
    console = wide_console()
    found = columns(tables)
    grids = {f"Certified accuracy [%] by l2 radius{_sigma(tables)}, ± standard error": found}
    if more := differences(tables):
        grids[f"Difference from {found[1][0]} in percentage points, paired by image [95 % interval]"] = [
            found[0],
            *more,
        ]
    for title, grid in grids.items():
        headings, texts = zip(*grid, strict=True)
        show_table(console, title, headings, list(zip(*texts, strict=False)))  # differences have only rows for radii
    for note in notes(tables):
        console.print(note)


def draw(path: Path, tables: Sequence[Table]) -> None:
    """Plot certified accuracy against the radius: one line per table with its 95 % band, the paper's rows dashed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        last = max((row.radius for _, rows in tables for row in rows if row.correct), default=0.0)
        radii = [last * 1.02 * k / 400 for k in range(401)]
        for number, (name, (header, rows)) in enumerate(zip(names(tables), tables, strict=True)):
            name += f" ({part} images)" if (part := unfinished(header, rows)) else ""
            color = COLORS[(number + 1) % len(COLORS)]
            if header["radii"] is not None:  # adaptive sampling has no values between the requested radii
                requested = sorted({radius for radius in _radii(header) if radius <= _reach(header)})
                points = [certified_accuracy(rows, radius) for radius in requested]
                errors = [[100 * (s.mean - s.low) for s in points], [100 * (s.high - s.mean) for s in points]]
                axes.errorbar(requested, [100 * s.mean for s in points], errors, fmt="o", color=color, label=name)
                continue
            within = [radius for radius in radii if radius <= _reach(header)]
            shares = [certified_accuracy(rows, radius) for radius in within]
            low, high = [100 * s.low for s in shares], [100 * s.high for s in shares]
            axes.fill_between(within, low, high, color=color, alpha=0.15, linewidth=0, step="post")
            axes.step(within, [100 * s.mean for s in shares], where="post", color=color, label=name)
        for (name, values), style in zip(_paper(tables).items(), (":", "-.", "--"), strict=False):
            axes.plot(*zip(*values.items(), strict=True), style, color=COLORS[0], label=name)
        axes.set(
            xlabel=f"l2 radius, for pixels in [0, 1]{_sigma(tables)}", ylabel="certified accuracy [%]",
            ylim=(0, 100), xlim=(0, None),
        )  # fmt: skip
        figure.legend(loc="outside lower center", ncols=2 if len(tables) < 5 else 3)
        save_figure(figure, path, dpi=160)


def _percent(share: Proportion) -> str:
    return f"{100 * share.mean:.1f} ± {100 * share.error:.1f}"

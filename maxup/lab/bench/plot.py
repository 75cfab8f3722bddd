"""Plots of a result: the cost of a step against m, and the loss gap against the cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxup.lab.bench.table import method
from maxup.lab.bench.timing import floor
from maxup.lab.report.figure import COLORS, MARKERS, STYLE, new_figure, save_figure

FLOOR = "floor of exact scoring:\n1 step + m forward passes"
Points = list[tuple[int, float]]


def plot_cost(result: Mapping[str, Any], path: Path) -> None:
    """Plot the time of a step, relative to the standard step, against m, with the floor of exact selection.

    Args:
        result: What `summarize` returned.
        path: File to write, in the format of its suffix.
    """
    from matplotlib import rc_context

    by_m, flat, bound = series(result)
    with rc_context(STYLE):
        figure, (panel,) = new_figure()
        figure.set_size_inches(7.2, 4.2)
        for i, (name, points) in enumerate(by_m.items(), 1):
            panel.plot(*zip(*points, strict=True), **_style(i), label=name)
        for i, (name, ratio) in enumerate(flat.items(), 1 + len(by_m)):
            panel.axhline(ratio, color=_style(i)["color"], linestyle=":", label=name)
        panel.plot(*zip(*bound, strict=True), color="#222222", linestyle="--", linewidth=1.2, label=FLOOR)
        panel.axhline(1, color=COLORS[0], linewidth=1, label="standard step")
        ms = [m for m, _ in bound]
        highest = max([ratio for points in (*by_m.values(), bound) for _, ratio in points] + list(flat.values()))
        panel.set(xlabel="copies m", ylabel="time of a step / standard step", ylim=(0, 1.06 * highest))
        panel.set_xticks(ms, [str(m) for m in ms])
        _finish(figure, result, path)


def plot_gap(result: Mapping[str, Any], path: Path) -> None:
    """Plot the loss gap of every selection against the time of a step. The numbers are m. Up and left is better.

    Args:
        result: What `summarize` returned.
        path: File to write, in the format of its suffix.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure, (panel,) = new_figure()
        figure.set_size_inches(7.2, 4.2)
        for i, (name, points) in enumerate(gaps(result).items(), 1):
            (ms, ratios, heights), style = zip(*points, strict=True), _style(i)
            panel.plot(ratios, heights, **style, label=name)
            for m, x, y in zip(ms, ratios, heights, strict=True):
                panel.annotate(str(m), (x, y), (4, -10), textcoords="offset points", fontsize=8.5, color=style["color"])
        panel.plot(1, 0, "o", color=COLORS[0], label="standard step")
        panel.set(xlabel="time of a step / standard step", ylabel="loss: selected copy - mean copy")
        panel.margins(y=0.08)
        _finish(figure, result, path)


def _style(i: int) -> dict[str, Any]:
    """Return the style of the i-th line, from 1. The color of 0 is that of the standard step."""
    again, i = divmod(i - 1, len(COLORS) - 1)
    hollow: dict[str, Any] = {"markerfacecolor": "white", "linestyle": "-."} if again else {}
    return {"color": COLORS[i + 1], "marker": MARKERS[i + 1], "markersize": 5, **hollow}


def _finish(figure: Any, result: Mapping[str, Any], path: Path) -> None:
    parts = [result["network"].rpartition(":")[2], f"batch {result['batch_size']}", result["environment"]["hardware"]]
    figure.axes[0].set_title(", ".join(map(str, parts)), fontsize=10)
    figure.legend(loc="outside right upper")
    save_figure(figure, path, **({"dpi": 160} if path.suffix == ".png" else {}))


def series(result: Mapping[str, Any]) -> tuple[dict[str, Points], dict[str, float], Points]:
    """Return the ratios by m of each method, the ratios of methods without m, and the floor by m.

    With m = 1 every method is the standard step.
    """
    measured = [row for row in result["variants"][1:] if row["time_ratio"] is not None]
    by_m: dict[str, Points] = {}
    for row in measured:
        if row["m"] is not None:
            by_m.setdefault(label(row), [(1, 1.0)]).append((row["m"], row["time_ratio"]))
    flat = {method(row): row["time_ratio"] for row in measured if row["m"] is None}
    forward, standard = result["median_forward_seconds"], result["variants"][0]["median_seconds"]
    ms = sorted({m for points in by_m.values() for m, _ in points} | {1})
    return by_m, flat, [(m, 1.0 if m == 1 else floor(m, forward, standard)) for m in ms]


def gaps(result: Mapping[str, Any]) -> dict[str, list[tuple[int, float, float]]]:
    """Return m, the time ratio and the gap of each method that selects."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in result["variants"]:
        if row["gap"] is not None and row["time_ratio"] is not None:
            found.setdefault(label(row), []).append((row["m"], row["time_ratio"], row["gap"]))
    return found


def label(row: Mapping[str, Any]) -> str:
    """Return the name of a variant for a legend: MaxUp with its settings, or the name as words.

    Example:
        >>> label({"name": "maxup_running", "settings": {"norm": "'running'"}})
        "MaxUp, norm='running'"
    """
    if not row["name"].startswith("maxup"):
        return method(row)
    settings = ",\n".join(f"{name}={value}" for name, value in row["settings"].items())  # values are as in source code
    return f"MaxUp, {settings}" if settings else "MaxUp, default"

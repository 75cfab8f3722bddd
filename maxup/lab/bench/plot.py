"""Plot the cost of a step against the number of copies m."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxup.lab.bench.table import method
from maxup.lab.bench.timing import floor
from maxup.lab.report.figure import COLORS, MARKERS, STYLE, new_figure, save_figure


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Plot the time of a step, relative to the standard step, against m, with the floor of exact selection."""
    from matplotlib import rc_context

    rows = [row for row in result["variants"] if row["time_ratio"] is not None]
    ms = sorted({row["m"] for row in result["variants"] if row["m"]})
    standard = rows[0]["median_seconds"]
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows[1:]:
        points = [(row["m"], row["time_ratio"])] if row["m"] else [(m, row["time_ratio"]) for m in (ms[0], ms[-1])]
        lines.setdefault(method(row), [] if row["m"] is None else [(1, 1.0)]).extend(points)
    flat = {method(row) for row in rows if row["m"] is None}
    with rc_context(STYLE):
        figure, (panel,) = new_figure()
        figure.set_size_inches(6.4, 4.4)
        for i, (name, points) in enumerate(lines.items(), 1):
            style: Any = {"color": COLORS[i % 8], "label": name}
            style |= {"linestyle": ":"} if name in flat else {"marker": MARKERS[i % 8], "markersize": 5}
            panel.plot(*zip(*points, strict=True), **style)
        forward = result["median_forward_seconds"]
        bound = [(m, floor(m, forward, standard) if m > 1 else 1.0) for m in ms]
        label = "floor: 1 step + m forward passes"
        panel.plot(*zip(*bound, strict=True), color="#222222", linestyle="--", linewidth=1.2, label=label)
        panel.axhline(1, color=COLORS[0], linewidth=1)
        panel.annotate(
            "standard step", (ms[-1], 1), (0, -4), textcoords="offset points", ha="right", va="top", fontsize=8.5,
            color=COLORS[0],
        )  # fmt: skip
        panel.set(xlabel="copies m", ylabel="time of a step / standard step")
        panel.set_ylim(0, 1.08 * max(ratio for points in (*lines.values(), bound) for _, ratio in points))
        panel.set_xticks(ms, [str(m) for m in ms])
        parts = [result["network"], f"batch {result['batch_size']}", result["environment"]["hardware"]]
        panel.set_title(", ".join(map(str, parts)), fontsize=10)
        panel.legend(loc="upper left")
        save_figure(figure, path, **({"dpi": 160} if path.suffix == ".png" else {}))

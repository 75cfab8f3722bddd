"""The picture of a comparison: one panel per metric, one line per row."""

from pathlib import Path
from typing import Any

import numpy as np

from maxup.lab.report.figure import save_figure
from maxup.lab.results.comparison import METRICS


def plot(result: dict[str, Any], path: Path, title: str) -> None:
    """One panel a metric, one line a row: mean ± std, the seeds as small dots below it, the twin's mean dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    runs, table = result["runs"], result["summary"]
    metrics = [metric for metric in table if metric != "seconds"]
    names = list(runs)
    places = np.arange(len(names))
    size = (2.75 * len(metrics) + 1.3, 1.6 + 0.42 * len(names))
    figure, panels = plt.subplots(1, len(metrics), figsize=size, sharey=True, layout="constrained", squeeze=False)
    for panel, metric in zip(panels[0], metrics, strict=True):
        values = np.array([[run[metric] for run in runs[name]] for name in names])  # (rows, seeds)
        panel.axvline(table[metric][names[0]]["mean"], color="0.75", linewidth=1, linestyle="--", zorder=0)
        spread = np.linspace(0.12, 0.3, values.shape[1])
        for place, name, seeds in zip(places, names, values, strict=True):
            color = "0.35" if name == names[0] else "C1" if name in result["equal_time"] else "C0"
            panel.plot(seeds, place + spread, "o", color=color, alpha=0.3, markersize=3, markeredgewidth=0)
            row = table[metric][name]
            panel.errorbar(row["mean"], place, xerr=row["std"], color=color, marker="o", markersize=6, capsize=3)
            text = f"{row['mean']:.{METRICS[metric].decimals}f}"
            panel.annotate(text, (row["mean"], place), (0, 7), textcoords="offset points", ha="center", fontsize=8)
        panel.set_title(METRICS[metric].title, fontsize=9)
        panel.tick_params(labelsize=8)
        panel.tick_params(axis="y", length=0)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.margins(x=0.12)
    panels[0][0].set_yticks(places, names)
    panels[0][0].set_ylim(len(names) - 0.5, -0.6)
    figure.suptitle(f"{title}: mean ± std of {len(result['seeds'])} seeds; small dots, each seed", fontsize=10)
    save_figure(figure, path, dpi=140)
    plt.close(figure)

"""Plot the comparisons of docs/results.md: python -m benchmarks.plots"""

from matplotlib.figure import Figure

from benchmarks.result_files import EXPERIMENTS, NOISES, RESULTS, compared, result
from maxup.lab.report.comparison import plot
from maxup.lab.report.figure import save_figure
from maxup.lab.results.comparison import CONTROLS, METRICS, TIME_OF


def noise() -> None:
    """Plot the accuracy under PGD against the clean accuracy on digits, for m = 1 and 4 and every noise."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    panel = figure.subplots()
    rows = {"m = 1": "0.35", f"m = 1{TIME_OF}m = 4": "C1", "m = 4": "C0"}
    for row, color in rows.items():
        tables = {sigma: result(file)["summary"] for sigma, file in NOISES.items()}
        x, y = ([table[metric][row]["mean"] for table in tables.values()] for metric in ("clean", "attacked"))
        panel.plot(x, y, marker="o", color=color, label=row)
        for sigma, across, up in zip(tables, x, y, strict=True):
            panel.annotate(sigma, (across, up), (5, 4), textcoords="offset points", fontsize=8, color=color)
        for file in NOISES.values():
            runs = result(file)["runs"][row]
            panel.plot([r["clean"] for r in runs], [r["attacked"] for r in runs], ".", color=color, alpha=0.15)
    panel.set(xlabel=METRICS["clean"].title, ylabel=METRICS["attacked"].title)
    panel.set_title("MLP on digits: mean of 20 seeds, by standard deviation of the noise", fontsize=10)
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, RESULTS / "digits-noise.png", dpi=140)


def main() -> None:
    for file, experiment in EXPERIMENTS.items():
        if experiment.plot:
            found = compared(file)
            if experiment.fast:  # the easiest of 4 is far from the other rows of the speed run
                found["runs"] = {name: runs for name, runs in found["runs"].items() if not name.startswith(CONTROLS)}
            plot(found, RESULTS / f"{file}.png", experiment.plot)
    noise()


if __name__ == "__main__":
    main()

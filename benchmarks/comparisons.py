"""Tables of the files that `maxup compare` wrote, for `benchmarks.tables`."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from benchmarks.result_files import CERTIFIED_NOISES, LENGTHS, RIVALS, SIZES, compared, origin, result
from maxup.lab.experiments.certification import Certification
from maxup.lab.report.comparison import interval
from maxup.lab.report.tables import format_difference
from maxup.lab.results.comparison import CONTROLS, CORRUPTED, FAST, METRICS, TIME_OF, controls
from maxup.lab.results.statistics import Difference, difference


def comparison(name: str, command: str, metrics: Collection[str] = METRICS, *, transpose: bool = False) -> str:
    """One row per setting of a comparison: mean ± std, and the interval of the difference from m = 1.

    A second table has the differences at equal time, and those from the controls.

    Args:
        name: Name of the result file.
        command: The command, without the numbers of copies, the other objectives, certification and the seeds.
        metrics: The metrics to show, if they were measured.
        transpose: One row per metric instead.
    """
    found = result(name)
    at_equal_time = {(row.rpartition(TIME_OF)[2], row): one["gain"] for row, one in found["equal_time"].items()}
    from_controls = controls(found["runs"], paired=found["paired"])
    ms = [row_name.removeprefix("m = ") for row_name in found["runs"] if re.fullmatch(r"m = \d+", row_name)]
    kinds = (*CONTROLS, "SmoothAdv")
    others = [kind.split()[0].lower() for kind in kinds if any(row_name.startswith(kind) for row_name in found["runs"])]
    objectives = f" --objectives {' '.join(others)}" if others else ""
    certified = found.get("certification")
    certify = f" --certify {certified['images']}" if certified else ""
    if certified and certified["n"] != Certification.n:
        certify += f" --certify_n {certified['n']}"
    robustness = " --robustness" if "corrupted" in found["summary"] else ""
    images = f" --images {found['images']}" if found.get("images") else ""
    fast = " --fast" if any(row_name.endswith(FAST) for row_name in found["runs"]) else ""
    alone = "" if found["equal_time"] else " --no_equal_time"
    options = f"{fast}{objectives}{certify}{robustness}{images}{alone}"
    command = f"{command} --seeds {len(found['seeds'])} --m {' '.join(ms)}{options}"
    parts = [markdown(means(found, metrics), transpose), f"`{command}` {origin(found['environment'])}"]
    if at_equal_time:
        parts[1] += f" Differences at equal time{' and from the controls' if from_controls else ''}:"
        parts.append(markdown(differences(found, at_equal_time | from_controls, metrics), transpose))
    return "\n\n".join(parts)


def means(found: dict[str, Any], metrics: Collection[str]) -> list[list[str]]:
    """Return the cells of a table with one row per setting: mean ± std, and the interval of the difference."""
    table = {metric: rows for metric, rows in found["summary"].items() if metric in metrics}
    grid = [["", *(METRICS[metric].title for metric in table)]]
    for row_name in found["runs"]:
        cells = [row_name]
        for metric in table:
            row, decimals = table[metric][row_name], METRICS[metric].decimals
            cell = f"{row['mean']:.{decimals}f} ± {row['std']:.{decimals}f}"
            if "difference" in row and metric != "seconds":
                cell += interval(row, decimals)
            cells.append(cell)
        grid.append(cells)
    return grid


def differences(found: dict[str, Any], pairs: dict[Any, Any], metrics: Collection[str]) -> list[list[str]]:
    """Return the cells of a table with one row per difference. `pairs` holds its gains by (ours, baseline)."""
    shown = [metric for metric in found["summary"] if metric in metrics]
    grid = [["difference", *(METRICS[metric].short for metric in shown)]]
    for (ours, other), gains in pairs.items():
        cells = [
            f"{gains[metric]['difference']:+.{METRICS[metric].decimals}f}"
            + interval(gains[metric], METRICS[metric].decimals)
            for metric in shown
        ]
        grid.append([f"{ours} minus {other}", *cells])
    return grid


def markdown(grid: list[list[str]], transpose: bool = False) -> str:
    """Return rows of cells as a Markdown table."""
    first, *rows = zip(*grid, strict=True) if transpose else grid
    return "\n".join(f"| {' | '.join(row)} |" for row in (first, ["---"] * len(first), *rows))


def sweep(title: str, files: dict[str, str], metrics: Collection[str] = ("clean", "attacked")) -> str:
    """One row per comparison: m = 1, m = 4, and their differences at equal epochs and at equal time.

    Args:
        title: What the setting is.
        files: Result file by value of the setting.
        metrics: The metrics to show.
    """
    found = {value: result(file) for value, file in files.items()}
    headings = [f"{METRICS[m].title}: m = 1 | m = 4 | equal epochs | equal time" for m in metrics]
    lines = [f"| {title} | {' | '.join(headings)} |", "|---" * (1 + 4 * len(headings)) + "|"]
    for value, one in found.items():
        cells = []
        for metric in metrics:
            decimals, rows = METRICS[metric].decimals, one["summary"][metric]
            cells += [
                f"{rows[name]['mean']:.{decimals}f} ± {rows[name]['std']:.{decimals}f}" for name in ("m = 1", "m = 4")
            ]
            for gain in (rows["m = 4"], one["equal_time"]["m = 1, time of m = 4"]["gain"][metric]):
                cells.append(f"{gain['difference']:+.{decimals}f}{interval(gain, decimals)}")
        lines.append(f"| {value} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(*(one['environment'] for one in found.values()))}"


def trend() -> str:
    """The gain in clean accuracy with the fewest images, minus that with the most."""
    first, *_, last = (gains(file, "m = 4", "m = 1", "clean") for file in SIZES.values())
    return difference_of_gains(first, last, "clean")


def late_minus_all(start: str) -> str:
    """The gain under PGD at equal time of m = 4 late, minus that of m = 4 in all epochs."""
    files = (f"digits-late/{start}", LENGTHS["60"])
    late, always = (gains(file, "m = 4", "m = 1, time of m = 4", "attacked") for file in files)
    return difference_of_gains(late, always, "attacked")


def difference_of_gains(first: dict[int, float], second: dict[int, float], metric: str) -> str:
    """The gains per seed of one comparison, minus those of another, paired by seed."""
    found = difference(first, second, paired=True)
    assert found is not None
    return format_difference(found, METRICS[metric].decimals, found.n)


def gains(file: str, ours: str, baseline: str, metric: str) -> dict[int, float]:
    """The gain of a row over a baseline, per seed."""
    runs = result(file)["runs"]
    return {a["seed"]: a[metric] - b[metric] for a, b in zip(runs[ours], runs[baseline], strict=True)}


def docstrings(perturbation: str, *, dropout: bool = True) -> str:
    """Text classification with a small Transformer, with exact scoring or without dropout."""
    code = "--data_from benchmarks.docstrings:data --model_from benchmarks.docstrings:encoder"
    command = f"maxup compare benchmarks/docstrings-{perturbation}.yaml {code}"
    if dropout:
        return comparison(f"docstrings-{perturbation}", command)
    return comparison(f"docstrings-{perturbation}-no_dropout", f"{command} --objective.dropout false")


def digits_shortlist() -> str:
    """Certified radii of 25 copies with exact scoring and with a shortlist, paired by seed, and of 8 copies."""
    names = {"exact, m = 25": "exact-25", "`shortlist=4`, m = 25": "shortlist-25", "exact, m = 8": "exact-8"}
    found = {name: result(f"digits-shortlist/{file}") for name, file in names.items()}
    lines = [
        "| | clean [%] | average certified radius | minus exact, m = 25 | minus m = 1 at equal time | time / m = 1 |",
        "|---" * 6 + "|",
    ]
    reference = None
    for name, one in found.items():
        ours = next(row for row in one["runs"] if re.fullmatch(r"m = \d+", row) and row != "m = 1")
        radii = {run["seed"]: run["radius"] for run in one["runs"][ours]}
        reference = reference or radii
        paired = difference(radii, reference, paired=True)
        record = one["equal_time"][f"m = 1, time of {ours}"]
        table, gain = one["summary"], record["gain"]["radius"]
        cells = [f"{table[metric][ours]['mean']:.{METRICS[metric].decimals}f}" for metric in ("clean", "radius")]
        assert paired is not None
        cells.append("" if reference is radii else format_difference(paired, 3, paired.n))
        cells.append(f"{gain['difference']:+.3f}{interval(gain, 3)}")
        lines.append(f"| {name} | {' | '.join(cells)} | {record['ratio']:.2f} |")
    return "\n".join(lines) + f"\n\n{origin(*(one['environment'] for one in found.values()))}"


def digits_cause() -> str:
    """Worst, average and easiest of 4 copies on digits."""
    metrics = ["clean", "worst", "attacked", "gradient", "seconds"]
    return comparison("digits-cause", "maxup compare digits/mlp-gaussian-maxup", metrics)


def digits_certified() -> str:
    """Certified radii on digits, against Gaussian noise and SmoothAdv."""
    metrics = ["clean", "radius", "certified_0.25", "certified_0.5", "certified_1", "seconds"]
    return comparison("digits-certified", "maxup compare smoke/digits-gaussian-maxup", metrics)


def digits_robustness() -> str:
    """Accuracy on corrupted digits, and calibration."""
    metrics = ["clean", "corrupted", *(f"corrupted_{kind}" for kind in CORRUPTED), "nll", "ece", "seconds"]
    return comparison("digits-cause", "maxup compare digits/mlp-gaussian-maxup", metrics, transpose=True)


def photos(name: str) -> str:
    """CutMix on photos at 96 x 96 pixels, with the fast preset ("photos"), and with 2 copies ("photos-2")."""
    code = "--data_from benchmarks.photos:data --model_from benchmarks.photos:net"
    return comparison(name, f"maxup compare benchmarks/photos-cutmix.yaml {code}")


def minilm() -> str:
    """A pretrained encoder that is fine-tuned on docstrings with token dropout."""
    code = "--data_from benchmarks.minilm:data --model_from benchmarks.minilm:encoder"
    return comparison("minilm", f"maxup compare benchmarks/minilm-token_dropout.yaml {code}")


def best_noise(files: Iterable[str], row: str, metric: str) -> str:
    """The file of the noise with which a row has the highest mean of a metric on digits."""
    return max(files, key=lambda file: result(file)["summary"][metric][row]["mean"])


def at_best_noise(files: Collection[str], m: int, by: str, metric: str) -> str:
    """MaxUp with its best noise, chosen by one metric, minus m = 1 for its time with its best noise."""
    rows = [f"{best_noise(files, row, by)}: {row}" for row in (f"m = {m}", f"m = 1{TIME_OF}m = {m}")]
    return one_difference(rows[0], rows[1], metric)


def certified_noise() -> str:
    """One row per noise of training: certified radius and clean accuracy of m = 1 and m = 5 on digits.

    The last columns are m = 5 with the weakest noise minus m = 1 for the time of m = 5.
    """
    timed, first = f"m = 1{TIME_OF}m = 5", next(iter(CERTIFIED_NOISES.values()))
    headings = [f"{METRICS[metric].short}: m = 1 | {timed} | m = 5" for metric in ("radius", "clean")]
    lines = [f"| noise of training | {' | '.join(headings)} | difference: certified radius | clean |"]
    lines += ["|---" * 9 + "|"]
    for sigma, file in CERTIFIED_NOISES.items():
        table, cells = result(file)["summary"], list[str]()
        for metric in ("radius", "clean"):
            decimals = METRICS[metric].decimals
            means = (table[metric][row] for row in ("m = 1", timed, "m = 5"))
            cells += [f"{found['mean']:.{decimals}f} ± {found['std']:.{decimals}f}" for found in means]
        cells += [one_difference(f"{first}: m = 5", f"{file}: {timed}", metric) for metric in ("radius", "clean")]
        lines.append(f"| {sigma} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(file)['environment'] for file in CERTIFIED_NOISES.values()))}"


def cifar16() -> str:
    """500 images of CIFAR-10 at 16 x 16 pixels, trained for long."""
    command = "maxup compare benchmarks/cifar16-little_data.yaml --data_from benchmarks.cifar16:data"
    return comparison("cifar16", command)


def cifar16_certified() -> str:
    """Certified radii on CIFAR-10 at 16 x 16 pixels, against Gaussian noise and SmoothAdv."""
    command = "maxup compare benchmarks/cifar16-certified.yaml --data_from benchmarks.cifar16:data --radius 1"
    metrics = ["clean", "radius", "certified_0.25", "certified_0.5", "seconds"]
    return comparison("cifar16-certified", command, metrics)


def late() -> str:
    """Digits, m = 4 in all, the last half, or the last fifth of the epochs: gains, and what the gain costs."""
    names = {"all epochs": "digits-length/60", "last half": "digits-late/0.5", "last fifth": "digits-late/0.8"}
    metrics = ("clean", "attacked")
    columns = ("minus m = 1 at equal epochs", "minus m = 4 in all epochs", "minus m = 1 at equal time")
    headings = [f"{METRICS[metric].short}: {columns[0]} | {' | '.join(columns[1:])}" for metric in metrics]
    lines = [f"| m = 4 in the | time / m = 1 | {' | '.join(headings)} |", "|---" * (2 + 3 * len(metrics)) + "|"]
    first = next(iter(names.values()))
    for name, file in names.items():
        cells = [f"{result(file)['equal_time']['m = 1, time of m = 4']['ratio']:.2f}"]
        for metric in metrics:
            cells.append(one_difference(f"{file}: m = 4", f"{file}: m = 1", metric))
            cells.append("" if file == first else one_difference(f"{file}: m = 4", f"{first}: m = 4", metric))
            cells.append(one_difference(f"{file}: m = 4", f"{file}: m = 1, time of m = 4", metric))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(file)['environment'] for file in names.values()))}"


def which_m() -> str:
    """One row per m on digits: its time, its gain over m = 1, and how its gain compares with that of m = 4."""
    found, metrics = result("digits"), ("clean", "attacked")
    headings = [f"{METRICS[m].short}: equal epochs | equal time | equal time, minus m = 4" for m in metrics]
    lines = [f"| m | time / m = 1 | {' | '.join(headings)} |", "|---" * (2 + 3 * len(metrics)) + "|"]
    for timed, record in found["equal_time"].items():
        ours = timed.rpartition(TIME_OF)[2]
        cells = [ours.removeprefix("m = "), f"{record['ratio']:.2f}"]
        for metric in metrics:
            cells += [one_difference(f"digits: {ours}", f"digits: {row}", metric) for row in ("m = 1", timed)]
            mine, of_4 = (gains("digits", row, f"m = 1{TIME_OF}{row}", metric) for row in (ours, "m = 4"))
            cells.append("" if ours == "m = 4" else difference_of_gains(mine, of_4, metric))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def rivals() -> str:
    """One row per other method on digits: its accuracies, and m = 4 minus it at equal epochs and at equal time."""
    metrics, ours = ("clean", "worst", "attacked"), "digits-rivals/pgd: m = 4"
    headings = [f"{METRICS[m].short} [%] | equal epochs | equal time" for m in metrics]
    lines = [f"| | seconds | {' | '.join(headings)} |", "|---" * (2 + 3 * len(metrics)) + "|"]
    for name, (file, row) in {"m = 4": ("digits-rivals/pgd", "m = 4"), **RIVALS}.items():
        table, cells = result(file)["summary"], list[str]()
        for metric in ("seconds", *metrics):
            found, decimals = table[metric][row], METRICS[metric].decimals
            cells.append(f"{found['mean']:.{decimals}f} ± {found['std']:.{decimals}f}")
            if metric != "seconds":
                others = [f"{file}: {row}", f"{file}-time: {row}"] if name in RIVALS else []
                cells += [one_difference(ours, other, metric) for other in others] or ["", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(file)['environment'] for file, _ in RIVALS.values()))}"


def one_difference(ours: str, baseline: str, metric: str) -> str:
    """The difference between two rows with its interval. A row is "FILE: NAME", as in "digits-cause: m = 4"."""
    found = row_difference(ours, baseline, metric)
    return format_difference(found, METRICS[metric].decimals, found.n)


def row_difference(ours: str, baseline: str, metric: str) -> Difference:
    """The difference between two rows, which are named as in `one_difference`."""

    def values(row: str) -> dict[int, float]:
        file, _, name = row.partition(": ")
        return {run["seed"]: run[metric] for run in compared(file)["runs"][name]}

    paired = {compared(row.partition(": ")[0])["paired"] for row in (ours, baseline)}
    assert len(paired) == 1, "the rows cannot be compared"
    found = difference(values(ours), values(baseline), paired=paired.pop())
    assert found is not None
    return found

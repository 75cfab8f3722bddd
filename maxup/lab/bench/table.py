"""The table of a result in the terminal."""

from collections.abc import Mapping
from statistics import quantiles
from typing import Any

from maxup.lab.bench.profile import shares
from maxup.lab.report.terminal import show_table, wide_console

HEADINGS = ("method", "m", "ms", "time ratio", "floor", "peak MiB", "memory ratio", "gap", "gap kept", "same winner")
UNEVEN = 0.1  # interquartile range of the ratios of the rounds, relative to their median
LEGEND = (
    "Ratios are to the standard step of this run. floor: 1 + m forward passes without a graph. peak MiB: allocated "
    "during a step, beyond weights and optimizer state. gap: mean loss of the selected copy minus the mean copy. gap "
    "kept: its share of the gap of exact scoring with the same copies. same winner: how often the selected copy is the "
    "worst by exact scoring."
)


def show(result: Mapping[str, Any]) -> None:
    """Print a result of `summarize`."""
    console = wide_console()
    rows = [cells(row) for row in result["variants"]]
    bold = [row["name"].startswith("maxup") for row in result["variants"]]
    show_table(console, title(result), HEADINGS, rows, bold)
    for row in result["variants"]:
        if row["note"]:
            console.print(f"  {method(row)}: {row['note']}", style="dim")
    for row in result["variants"]:
        if row.get("profile"):
            console.print(f"  {time_shares(row)}")
    if uneven := spreads(result):
        console.print(f"  Times vary between rounds: {', '.join(uneven)}; use more --rounds, or an idle machine.")
    console.print(copy_cost(result))
    console.print(LEGEND, style="dim")


def title(result: Mapping[str, Any]) -> str:
    """Describe what was measured on one line."""
    how = [
        result["network"],
        result["perturbation"],
        f"batch {result['batch_size']}",
        f"{result['data']} data" if result["data"] == "random" else result["data"],
        result["environment"]["hardware"] or result["device"],
        *(["bf16"] if result["precision"] == "bf16" else []),
        *(["compiled"] if result["compile"] else []),
        *(["captured"] if result["step"] == "captured" else []),
    ]
    return f"{', '.join(how)}, median of {result['rounds']} rounds"


def spreads(result: Mapping[str, Any]) -> list[str]:
    """Return the variants whose times, relative to the standard step of the same round, vary a lot, and by how much.

    Example:
        >>> step = {"name": "standard", "m": 1, "seconds": [1.0, 1.0, 2.0]}
        >>> steady = {"name": "maxup", "m": 2, "seconds": [2.0, 2.1, 4.2]}
        >>> spreads({"variants": [step, steady, {"name": "sam", "m": None, "seconds": [2.0, 3.0, 8.0]}]})
        ['sam by 33 %']
    """
    found, base = [], result["variants"][0]["seconds"]
    for row in result["variants"][1:]:
        if row["seconds"] is None or len(base) < 3:
            continue
        ratios = [one / standard for one, standard in zip(row["seconds"], base, strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        if (high - low) / middle > UNEVEN:
            name = method(row) if row["m"] is None else f"{method(row)}, m = {row['m']},"
            found.append(f"{name} by {100 * (high - low) / middle:.0f} %")
    return found


def copy_cost(result: Mapping[str, Any]) -> str:
    """Return what drawing and applying one copy costs, as a sentence."""
    share, ms = 100 * result["copy_ratio"], 1000 * result["median_copy_seconds"]
    return f"Drawing and applying one copy takes {ms:.2f} ms, {share:.1f} % of the standard step."


def time_shares(row: Mapping[str, Any]) -> str:
    """Return where the time of a variant goes, as a sentence."""
    parts = shares(row["profile"], row["median_seconds"])
    name = method(row) if row["m"] is None else f"{method(row)}, m = {row['m']}"
    return f"{name}: " + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in parts.items())


def method(row: Mapping[str, Any]) -> str:
    """Return the name of a variant as words."""
    return str(row["name"]).replace("_", " ")


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a variant. A value that was not measured is empty."""

    def number(key: str, digits: int, scale: float = 1) -> str:
        return "" if row[key] is None else f"{scale * row[key]:.{digits}f}"

    return [
        method(row),
        str(row["m"] or ""),
        number("median_seconds", 2, 1000),
        number("time_ratio", 2),
        number("floor", 2),
        number("peak_bytes", 1, 2**-20),
        number("memory_ratio", 2),
        number("gap", 3),
        number("gap_kept", 3),
        number("agreement", 3),
    ]

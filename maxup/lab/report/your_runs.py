"""The list of your runs: what differs from the recipe, the result and the time, over seeds."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from maxup.lab.report.tables import DASH, format_estimate, format_seconds
from maxup.lab.results.files import OLD, Result, budget_name, mean_seconds
from maxup.lab.results.statistics import estimate

COLUMNS = ("your runs", "what", "m", "result (n seeds)", "time")
STEP = re.compile(r"step-(\d+)", re.ASCII)


@dataclass(frozen=True)
class YourRun:
    """One line of the list: the runs that differ only in their seed, or a run that is not finished."""

    run: str
    """The folder, or a pattern of several folders, such as runs/mine/seed-*."""
    what: str
    """The recipe, unless the folder has its name, and what differs from it."""
    m: str
    ours: str
    cost: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """The same as numbers, for --json. Accuracies are in %."""


def your_runs(results: Sequence[Result], runs: Path, word: str = "") -> list[YourRun]:
    """Return a line for the runs in a folder whose name or recipe contains a word.

    Args:
        results: The results in `runs`, and others, which are ignored.
        runs: Folder of runs.
        word: A part of the names to list.
    """
    groups: dict[tuple[str, int, float], list[Result]] = {}
    for result in results:
        names = (result.recipe, result.trained, str(result.curve and result.curve.parent))
        if result.curve is not None and any(word in name for name in names):
            groups.setdefault((result.recipe, result.m, result.budget), []).append(result)
    return [*(_line(group) for group in groups.values()), *(one for one in _unfinished(runs) if word in one.run)]


def score(result: Result) -> tuple[str, float] | None:
    """Return the name and the value of the metric that a list shows, or None if the result does not have it."""
    for metric in ("test_accuracy", "test_perplexity"):
        if metric in result.last:
            return metric, result.last[metric]
    return None


def _line(group: Sequence[Result]) -> YourRun:
    folders = [result.curve.parent for result in group if result.curve]
    run = str(folders[0])
    if len(folders) > 1:
        run = str(folders[0].parent / re.sub(r"^seed-\d+", "seed-*", folders[0].name))
    scores = [found for result in group if (found := score(result))]
    accuracy = bool(scores) and scores[0][0] == "test_accuracy"
    ours = estimate([100 * value if accuracy else value for _, value in scores])
    seconds, first = mean_seconds(group), group[0]
    numbers = {
        "folders": [str(folder) for folder in folders], "recipe": first.trained or first.name, "m": first.m,
        "metric": scores[0][0] if scores else None, **(asdict(ours) if ours else {}), "seconds": seconds,
    }  # fmt: skip
    recipe = first.trained if first.trained != first.name else ""
    epochs = budget_name(first.budget, [first.trained or first.name]) if first.budget != 1 else ""
    return YourRun(
        run,
        ", ".join(filter(None, (recipe, first.variant, epochs))) or first.name,
        str(first.m),
        format_estimate(ours, 2, "%" if accuracy else "perplexity"),
        format_seconds(seconds),
        numbers,
    )


def _unfinished(runs: Path) -> list[YourRun]:
    """Return the runs with checkpoints but without run.json. Only the names of files are read."""
    found = []
    for checkpoints in sorted(runs.rglob("checkpoints")):
        folder, steps = checkpoints.parent, [STEP.fullmatch(path.name) for path in checkpoints.glob("step-*")]
        compared = "runs" in folder.relative_to(runs).parts
        if compared or OLD.search(folder.name) or (folder / "run.json").exists() or not any(steps):
            continue
        last = max(int(step[1]) for step in steps if step)
        numbers = {"folders": [str(folder)], "step": last}
        found.append(YourRun(str(folder), f"not finished, saved at step {last}", DASH, DASH, DASH, numbers))
    return found

"""Replace the result of a comparison. A result with different settings is kept under another name."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from maxup.lab.storage.atomic_io import read_json, write_json

SETTINGS = ("recipe", "task", "seeds", "attack", "certification", "images")
LARGEST = 1 << 24  # bytes of an earlier result; 20 seeds of five rows have 69 KB


def replace_result(file: Path, result: dict[str, Any], say: Callable[[str], Any]) -> None:
    """Write a result. An earlier one that differs in settings, rows or metrics is renamed, together with its plot.

    Args:
        file: Path of the result.
        result: The new result.
        say: Called with a note if the earlier result is renamed.
    """
    if why := _why_keep(file, result):
        names = (file.with_stem(f"{file.stem}-{number}") for number in count(1))
        kept = file.replace(next(name for name in names if not name.exists()))
        if (plot := file.with_suffix(".png")).exists():
            plot.replace(kept.with_suffix(".png"))
        say(f"note: {file} {why}; it is now {kept.name}")
    write_json(file, result)


def _why_keep(file: Path, result: dict[str, Any]) -> str:
    """Return why an earlier result must be kept, or "" if there is none or it has the same settings."""
    try:
        old = _about(read_json(file, most=LARGEST))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # not the result of a comparison
        return "cannot be read"
    new = _about(json.loads(json.dumps(result)))
    other = [name for name in new if old[name] != new[name]]
    return f"was written with different settings ({', '.join(other)})" if other else ""


def _about(result: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal for a result to replace another: settings, rows and metrics."""
    settings = {name: result.get(name) for name in SETTINGS}
    return settings | {"rows": list(result.get("runs", {})), "metrics": list(result.get("summary", {}))}

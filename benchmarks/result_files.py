"""Read the files in results/, and say where they were measured."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def origin(where: dict[str, Any], *others: dict[str, Any]) -> str:
    """Hardware, torch version and commits."""
    device = where["hardware"]
    if "NVIDIA" not in device:
        device += f", {where['threads']} thread{'s' * (where['threads'] > 1)}"
    commits = " and ".join(dict.fromkeys(map(short_commit, (where, *others))))
    return f"({device}; torch {where['versions']['torch']}; commit {commits}.)"


def short_commit(where: dict[str, Any]) -> str:
    return where["commit"].rstrip("+")[:7] + "+" * where["commit"].endswith("+")

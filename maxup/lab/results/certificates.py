"""Write certified accuracies into run.json, if they were made with the settings that reports require."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from maxup.errors import RunError
from maxup.lab.certify.analysis import RADII, metrics
from maxup.lab.certify.run import Settings
from maxup.lab.certify.tsv import Row
from maxup.lab.results.files import read_run
from maxup.lab.storage.atomic_io import read_json, write_json


def check_step(path: Path, step: int | None) -> None:
    """Raise a RunError if a run.json is of another step than the checkpoint. A missing file is valid.

    Args:
        path: The run.json.
        step: Step of the checkpoint. None for an exported model.
    """
    try:
        finished = read_json(path)["steps"]
    except FileNotFoundError:  # an unfinished run, or an exported model
        return
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"{path} is not a valid run.json; restore it, or choose another file with --out") from None
    if finished != step:
        raise RunError(
            f"{path} has step {finished}, but the newest valid checkpoint has step {step}; resume the training with "
            "the same maxup train command, or choose another file with --out"
        )


def write_certified_metrics(
    path: Path,
    rows: Sequence[Row],
    settings: Settings,
    *,
    trained: float | None,
    images: int,
    step: int | None,
    last: bool = True,
    own_file: bool = True,
) -> str | None:
    """Write the certified accuracies into a run.json.

    Any n is accepted, because fewer copies only give smaller radii. A larger alpha would give larger ones.

    Args:
        path: The run.json.
        rows: The certificates.
        settings: How the images were certified.
        trained: The sigma of the training noise, if known.
        images: Number of test images.
        step: Step of the certified checkpoint.
        last: Whether it is the last checkpoint.
        own_file: Whether the TSV has its default path in the run folder.

    Returns:
        None, or a message with the reason if run.json is unchanged.
    """
    indices = sorted(row.idx for row in rows)
    required = {
        "the last checkpoint": last,
        "no --out": own_file,
        "the sigma of training": settings.sigma == trained,
        "alpha 0.001 or less": settings.alpha <= 0.001,
        f"all radii from {RADII[0]:g} to {RADII[-1]:g}": settings.radii is None or set(RADII) <= set(settings.radii),
        "every 20th image (without --max) or --all": indices in (list(range(0, images, 20)), list(range(images))),
    }
    if missing := [name for name, met in required.items() if not met]:
        return f"{path} is not updated. Reports require: {', '.join(missing)}."
    run, certified = read_run(path), asdict(settings)
    if run.get("steps") != step:
        return f"{path} is not updated: it has step {run.get('steps')}, but the certificates are for step {step}."
    match run.get("certified"):
        case {"images": int(before), **same} if before > len(rows) and same == json.loads(json.dumps(certified)):
            return f"{path} is not updated: it already has these certificates for {before} images."
    run["last"] = run["last"] | metrics(rows)
    if settings.adaptive:
        del run["last"]["average_certified_radius"]  # adaptive sampling does not find the full radius
    run["certified"] = certified | {"images": len(rows)}
    write_json(path, run)
    return None

"""Which certificates a report may show: those of the very settings that its table is about go into run.json."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from maxup.lab.certify.analysis import RADII, metrics
from maxup.lab.certify.run import Settings
from maxup.lab.certify.tsv import Row
from maxup.lab.results.files import read_run
from maxup.lab.storage.atomic_io import write_json


def record(
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
    """Write what the certificates amount to into a run.json, or return why reports may not show them.

    Any n will do, since fewer copies only shorten radii; a larger alpha would lengthen them.

    Args:
        path: The run.json.
        rows: The certificates.
        settings: How they were made.
        trained: The sigma of the training, where known.
        images: How many test images there are.
        step: The step of the checkpoint that was certified.
        last: Whether they are of the last checkpoint.
        own_file: Whether their TSV is where a run's certificates belong.
    """
    shown = sorted(row.idx for row in rows)
    wanted = {
        "the last checkpoint": last,
        "no --out": own_file,
        "the sigma of the training": settings.sigma == trained,
        "alpha 0.001 or less": settings.alpha <= 0.001,
        f"all radii from {RADII[0]:g} to {RADII[-1]:g}": settings.radii is None or set(RADII) <= set(settings.radii),
        "every 20th image, or --all": shown in (list(range(0, images, 20)), list(range(images))),
    }
    if missing := [what for what, met in wanted.items() if not met]:
        return f"{path} stays as it is: reports want {', '.join(missing)}."
    run, about = read_run(path), asdict(settings)
    if run.get("steps") != step:
        return f"{path} is unchanged: it is of step {run.get('steps')}, and these certificates are of step {step}."
    match run.get("certified"):
        case {"images": int(before), **same} if before > len(rows) and same == json.loads(json.dumps(about)):
            return f"{path} stays as it is: it has these certificates of {before} images."
    run["last"] = run["last"] | metrics(rows)
    if settings.adaptive:
        del run["last"]["average_certified_radius"]  # radii are no longer than was asked for
    run["certified"] = about | {"images": len(rows)}
    write_json(path, run)
    return None

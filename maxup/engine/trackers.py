"""Accelerate's trackers: TensorBoard and the rest get the records that metrics.jsonl has."""

import json
import shutil
from pathlib import Path

from accelerate import Accelerator


def start_trackers(accelerator: Accelerator, folder: Path) -> None:
    """Begin tracking; TensorBoard is written anew from metrics.jsonl, so that no step appears twice."""
    if not accelerator.log_with:
        return
    if accelerator.is_main_process:
        shutil.rmtree(folder / "maxup", ignore_errors=True)
    accelerator.init_trackers("maxup")
    if accelerator.is_main_process:
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])

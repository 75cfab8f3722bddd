"""Start Accelerate in every process of a run, or say why it cannot start."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator

from maxup.errors import RunError, error_message

# How `accelerate launch` asks for an engine that splits the weights, and its name. On a CPU Accelerate ignores it.
SPLIT_WEIGHTS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def start_accelerator(precision: str, trackers: list[str], folder: Path) -> Accelerator:
    """Connect the processes of this run, which are all the same: every process has the whole model (DDP).

    Args:
        precision: Accelerate's `mixed_precision`.
        trackers: Accelerate's trackers.
        folder: The folder of the run, for the trackers.

    Raises:
        RunError: The launcher asks for split weights, or the processes cannot connect.
    """
    for variable, name in SPLIT_WEIGHTS.items():
        if os.environ.get(variable, "false").lower() in ("true", "1"):
            raise RunError(
                f"{name} splits the weights of a model, but maxup train keeps the whole model in every process (DDP); "
                "remove it from the Accelerate config, or use the library in your loop, which works with FSDP2"
            )
    try:
        return Accelerator(
            mixed_precision=precision,
            cpu=not torch.cuda.is_available(),
            log_with=trackers or None,
            project_dir=folder,
        )
    except RuntimeError as error:  # torch.distributed.DistError is one; gloo raises plain ones
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            raise
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        advice = "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun" if restarted else "check that all are started"
        raise RunError(
            f"the processes of this run cannot connect to each other ({error_message(error)[:150]}); {advice}"
        ) from error

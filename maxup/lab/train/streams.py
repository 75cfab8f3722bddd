"""The global random streams as data, for a checkpoint: torch (CPU and CUDA), Python and numpy."""

import random
from typing import Any

import numpy
import torch


def random_streams() -> dict[str, Any]:
    """Where the streams are now."""
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": [kind, torch.tensor(list(map(int, keys))), *rest],
    }


def restore_streams(streams: dict[str, Any]) -> None:
    """Put the streams back where they were.

    Example:
        >>> before = random_streams()
        >>> drawn = torch.rand(3), random.random(), numpy.random.rand()
        >>> restore_streams(before)
        >>> (torch.equal(drawn[0], torch.rand(3)), drawn[1] == random.random(), drawn[2] == numpy.random.rand())
        (True, True, True)
    """
    torch.set_rng_state(streams["torch"])
    if streams["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"])
    random.setstate(streams["python"])
    kind, keys, position, *rest = streams["numpy"]
    if not 0 <= position <= len(keys):  # which numpy itself would read beyond its memory
        raise ValueError(f"numpy's stream is at {position} of {len(keys)}")
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, *rest))

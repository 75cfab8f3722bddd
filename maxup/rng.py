"""Seeds of draws: of an objective, by `torch.manual_seed` but nothing taken from the global stream; and of a run."""

import hashlib
import itertools
import os
import weakref

import torch

_owners: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()


def own_seed(owner: object) -> int:
    """A seed that no other living owner and no other process has.

    It is made of the global seed, the process's rank and the lowest number no living owner has. So two objectives that
    live together draw differently, and a run repeated in one process after the same `torch.manual_seed` draws the same.
    """
    known = (i for i, other in _owners.items() if other is owner)  # one that begins anew keeps its number
    number = next(known, None)
    if number is None:
        number = next(i for i in itertools.count() if i not in _owners)
        _owners[number] = owner
    text = f"maxup {torch.initial_seed()} {number} {_rank()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def stream_seed(seed: int, rank: int, stream: int) -> int:
    """The seed of a run's stream: 0 is its augmentation's, 1 its copies'; other seeds, ranks and streams have others.

    Example:
        >>> [stream_seed(seed, rank, 1) for seed, rank in ((0, 0), (0, 1), (1, 0))]
        [1, 3, 2000007]
    """
    return 2 * (seed * 1_000_003 + rank) + stream


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))

"""Find the input and the target in a trainer's batch, which is a tuple, list or dict, and put the winners back."""

from collections import UserDict
from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any


def split(batch: Any, x: Hashable | None = None, y: Hashable | None = None) -> tuple[Any, Any]:
    """Return the entries x and y of a batch, or those that `MaxUpCallback` describes."""
    x, y = _keys(batch, x, y)
    return {key: batch[key] for key in batch if key != y} if x is None else batch[x], batch[y]


def join(batch: Any, winner_x: Any, winner_y: Any, x: Hashable | None = None, y: Hashable | None = None) -> Any:
    """Return the batch with x and y replaced; other entries stay, because winners keep their positions."""
    keys: Any = _keys(batch, x, y)
    if isinstance(batch, Mapping):
        # of the same type if possible: Hugging Face's BatchEncoding has attributes
        joined: Any = copy(batch) if isinstance(batch, dict | UserDict) else dict(batch)
        joined.update({**(winner_x if keys[0] is None else {keys[0]: winner_x}), keys[1]: winner_y})
        return joined
    entries = list(batch)
    entries[keys[0]], entries[keys[1]] = winner_x, winner_y
    return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)


def _keys(batch: Any, x: Hashable | None, y: Hashable | None) -> tuple[Any, Any]:
    """Return the keys of x and y in a batch; None for x is everything except y."""
    named = isinstance(batch, Mapping)
    x = 0 if x is None and not named else x
    y = y if y is not None else "labels" if named else 1
    known = list(batch) if named else list(range(len(batch))) if isinstance(batch, tuple | list) else []
    wanted = [key for key in (x, y) if key is not None]
    if not set(wanted) <= set(known):
        got = f"{type(batch).__name__} with the entries {known}" if known else type(batch).__name__
        raise TypeError(
            f"MaxUpCallback expects a tuple, list or dict with the entries {wanted}, but got a {got}; name the "
            "entries with MaxUpCallback(..., x=, y=)"
        )
    return x, y

"""Find the input and the target in a trainer's batch, which is a tuple, list or dict, and put the winners back."""

from collections import UserDict
from collections.abc import Callable, Hashable, Mapping
from copy import copy
from typing import Any

from maxup.errors import a_type

Join = Callable[[Any, Any], Any]


def split(batch: Any, x: Hashable = None, y: Hashable = None) -> tuple[Any, Any, Join]:
    """Return the entries x and y of a batch, and `join(x, y)`, which returns the batch with both replaced.

    Example:
        >>> x, y, join = split({"image": 1, "label": 2, "id": 3}, "image", "label")
        >>> join(10 * x, 10 * y)
        {'image': 10, 'label': 20, 'id': 3}
    """
    named = isinstance(batch, Mapping)
    entries: dict[Any, Any] = dict(batch if named else enumerate(batch if isinstance(batch, tuple | list) else ()))
    x = 0 if x is None and not named else x  # None: everything except y
    y = ("labels" if named else 1) if y is None else y
    wanted = [key for key in (x, y) if key is not None]
    if not set(wanted) <= entries.keys():
        got = a_type(batch) + (f" with the entries {list(entries)}" if entries else "")
        raise TypeError(
            f"MaxUpCallback expects a tuple, list or dict with the entries {wanted}, but got {got}; name the "
            "entries with MaxUpCallback(..., x=, y=)"
        )

    def join(winner_x: Any, winner_y: Any) -> Any:
        winners = {**(winner_x if x is None else {x: winner_x}), y: winner_y}
        if named:  # of the same type if possible: Hugging Face's BatchEncoding has attributes
            joined = copy(batch) if isinstance(batch, dict | UserDict) else entries.copy()
            joined.update(winners)
            return joined
        values = {**entries, **winners}.values()
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)

    inputs = entries[x] if x is not None else {key: value for key, value in entries.items() if key != y}
    return inputs, entries[y], join

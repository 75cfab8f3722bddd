"""Data sets by name: `list_data`, `load_data`."""

from typing import Any

from maxup.lab.data.catalog import Root, all_data_sets, get_data_set

__all__ = ["Root", "list_data", "load_data"]


def list_data() -> list[str]:
    """Return the names that `load_data` takes. This imports no heavy package."""
    return sorted(all_data_sets())


def load_data(name: str, root: Root = None) -> Any:
    """Load a data set.

    Args:
        name: One of `list_data()`.
        root: Folder to search first. Then come MAXUP_DATA, ./data and the system's folders.

    Returns:
        Images: the training set and the test set; the latter is None if the data set has no test set. An image folder
            may also have a validation set, in between.
        Text: a `Text` with training, validation and test tokens.
    """
    return get_data_set(name).load(root)

"""The data that a user's function returns: arrays, data sets, DataLoaders, or rows of Hugging Face `datasets`."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from maxup.errors import DataError, a_type, first_names, format_error
from maxup.lab.data.arrays import from_arrays, make_images
from maxup.lab.data.catalog import SPLITS
from maxup.lab.data.example import Label, label_column, row_columns, to_label
from maxup.lab.data.images import Images
from maxup.lab.data.labels import Names, are_numbers, check_seen, match_classes, to_classes
from maxup.lab.data.stream import (
    PROBE,
    Reader,
    Stream,
    check_shape,
    convert_example,
    read_batches,
    read_example,
    read_item,
)
from maxup.lab.data.tensors import check_layout, is_array
from maxup.lab.data.user_iterable import check_dtype, exhaust
from maxup.lab.data.user_loader import kind_of, of_loader
from maxup.lab.output import say
from maxup.rng import process_rank

MEMORY = 2**31  # bytes of examples that are kept in memory; a larger data set is streamed
EXPECTED = "return (x, y), (x, y, x_test, y_test), a data set, or (train, test)"
Data = Images | Stream


def from_user(returned: Any, workers: int = 8) -> tuple[Any, ...]:
    """Return (train, None), (train, test) or (train, validation, test), each as `Images` or `Stream`.

    Args:
        returned: Arrays (x, y) or (x, y, x_test, y_test), see `make_images`; or a data set; or a pair (train, test), a
            triple (train, validation, test), or a dict with these names, of data sets. A data set is a map-style or
            iterable Dataset, a DataLoader, a list of examples, or a pair of arrays.
        workers: Worker processes that read the labels of a large data set.
    """
    if isinstance(returned, tuple | list) and len(returned) in (2, 4) and _are_arrays(returned):
        return from_arrays(returned)
    parts = _parts(returned)
    train = _load(parts[0], workers)
    names = _wrapped_names(parts[0]) if are_numbers(train.classes) else None  # for example of a Subset
    names = names if names and len(names) >= len(train.classes) else None
    rest = [_load(part, workers, train, names, name) for part, name in zip(parts[1:], _names(parts), strict=True)]
    return (train, *rest) if rest else (train, None)


def _parts(returned: Any) -> list[Any]:
    if isinstance(returned, Mapping):
        found = named_parts(returned)
        if found["train"] is None:
            raise DataError(
                f"your data are a dict with {first_names([*map(str, returned)])}; call its parts train and test"
            )
        return [part for part in found.values() if part is not None]
    if isinstance(returned, list) and all(map(_is_data_set, returned)):
        returned = tuple(returned)  # from random_split, or from load_dataset with a list of splits
    if isinstance(returned, tuple) and len(returned) in (2, 3) and not any(map(is_array, returned)):
        return [part for part in returned if part is not None] or [None]
    return [returned]


def _is_data_set(part: Any) -> bool:
    return isinstance(part, Dataset | DataLoader) or hasattr(part, "column_names")  # Hugging Face


def named_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts train, validation and test of a dict, which may have other usual names. None if missing."""
    found = {key: [name for name in names if name in parts] for key, names in SPLITS.items()}
    for names in found.values():
        if len(names) > 1:
            raise DataError(f"your data have {' and '.join(names)}, which mean the same part; return one of them")
    return {key: parts[names[0]] if names else None for key, names in found.items()}


def _names(parts: list[Any]) -> list[str]:
    return ["validation", "test"][3 - len(parts) :] if len(parts) > 1 else []


def _are_arrays(values: Any) -> bool:
    labels = [isinstance(y, list | tuple) and bool(y) and isinstance(y[0], str) for y in values]
    return all(is_array(value) or (i % 2 and labels[i]) for i, value in enumerate(values))


def _load(
    source: Any, workers: int, like: Data | None = None, names: Names | None = None, part: str = "training"
) -> Data:
    """Load one data set: into memory, or as a stream if it is large or randomly augmented.

    `like` are the training examples, if these are for validation or test. `names` are the names of their classes, if
    like.classes are numbers.
    """
    if isinstance(source, tuple) and len(source) == 2 and _are_arrays(source):
        return make_images(*source, like=like, names=names, part=part)
    wrapped = _wrapped_names(source)
    source = of_loader(source) if isinstance(source, DataLoader) else source
    classes = wrapped if like else _class_names(source)
    if isinstance(source, str | bytes | Mapping | Tensor) or is_array(source):
        raise DataError(f"your data is {a_type(source)}; {EXPECTED}")
    columns, labels = like.columns if like else (), None
    if not hasattr(source, "__getitem__") or isinstance(source, IterableDataset):
        if not isinstance(source, Iterable):
            raise DataError(f"your data is {a_type(source)}; {EXPECTED}")
        read, labels, columns = exhaust(source, columns, MEMORY)
        if isinstance(read, Tensor):
            return make_images(read, labels, classes, like=like, names=names, part=part, columns=columns)
        source = read
    count, first = _length(source), read_item(source, 0)
    columns = columns or row_columns(first)
    x, _ = convert_example(first, 0, columns)
    augmented = labels is None and _is_augmented(source, count)
    if augmented or count * x.numel() * x.element_size() > MEMORY:
        check_layout(tuple(x.shape))
        labels = labels or _labels(source, count, workers)
        stream = _stream(source, x, labels, classes, columns, augmented=augmented, kind=f"{part} " if like else "")
        return _match(stream, like, names, part) if like else stream.with_statistics()
    return make_images(*_read(source, count, x, columns), classes, like=like, names=names, part=part, columns=columns)


def _length(source: Any) -> int:
    try:
        count = len(source)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"your {kind_of(source)} has no length; define __len__, or return an IterableDataset that ends"
        ) from None
    except Exception as error:  # of any type: it is not our code
        raise DataError(f"len() of your {kind_of(source)} raised {format_error(error)}; fix its __len__") from error
    if count < 1:
        raise DataError(f"your {kind_of(source)} is empty; return at least one example")
    return count


def _read(source: Any, count: int, first: Tensor, columns: Names) -> tuple[Tensor, list[Label]]:
    """Read a whole data set: x, (N, ...), and the labels."""
    x, labels = torch.empty(count, *first.shape, dtype=first.dtype), []
    for row in range(count):
        value, label = read_example(source, row, columns=columns)
        check_shape(row, tuple(value.shape), tuple(first.shape))
        check_dtype(row, value, first)
        x[row] = value
        labels.append(label)
    return x, labels


def _is_augmented(source: Any, count: int) -> bool:
    """Whether a random transform changes some of `PROBE` examples with the seed.

    Print a warning if they change without it.
    """
    rows = range(0, count, max(count // PROBE, 1))

    def read(seed: int) -> list[Tensor]:
        return [read_example(source, row, (seed,))[0] for row in rows]

    first = read(0)
    if all(_equal(first, read(seed)) for seed in (1, 2)):
        return False
    if not _equal(first, read(0)) and process_rank() == 0:
        say(
            f"your {kind_of(source)} returns different examples for the same seed, so a resumed run will differ from "
            "one that was never stopped; draw from the global generators of torch, numpy or random, which are seeded "
            "for each example",
            file=sys.stderr,
        )
    return True


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, some, others))


def _stream(
    source: Any, x: Tensor, labels: list[Label], classes: Names | None, columns: Names, *, augmented: bool, kind: str
) -> Stream:
    """Make a stream. `x` is its first example."""
    y, classes = to_classes(labels, classes, kind)
    numbers = dict(zip(labels, y.tolist(), strict=True))
    mean = (0.0,) * (0 if x.dtype == torch.int64 else len(x))
    shape, std = tuple(x.shape), (1.0,) * len(mean)
    rows = torch.arange(len(labels))
    return Stream(
        source, rows, y, classes, shape, x.dtype, mean, std, augmented=augmented, numbers=numbers, columns=columns
    )


def _match(stream: Stream, like: Data, names: Names | None, part: str) -> Stream:
    """Return a stream with the classes, mean and std of the training examples."""
    y = match_classes(stream.y, stream.classes, names or like.classes, part)
    x = stream.read(0)
    make_images(x[None], y[:1], like.classes, like=like, part=part)  # checks the type and size
    check_seen(y, like, part)
    matched = dict(zip(stream.y.tolist(), y.tolist(), strict=True))
    numbers = {label: matched[number] for label, number in stream.numbers.items()}
    return replace(stream, y=y, classes=like.classes, mean=like.mean, std=like.std, numbers=numbers)


def _labels(source: Any, count: int, workers: int) -> list[Label]:
    """Return all labels: from a column or `targets` if they agree with some examples, otherwise by reading all."""
    rows = range(0, count, max(count // PROBE, 1))
    try:
        name = label_column(getattr(source, "column_names", None) or ())
        known = [to_label(label) for label in (source[name] if name else torch.as_tensor(source.targets).tolist())]
        if len(known) == count and all(known[row] == read_example(source, row)[1] for row in rows):
            return known
    except Exception:  # of any type: it is not our code; the labels can still be read
        pass
    parts = [part.tolist() for part in torch.arange(count).split(256)]
    batches = read_batches(Reader(source, parts, (), None), workers, torch.device("cpu"))
    return [label for _, labels in batches for label in labels]


def _class_names(source: Any) -> Names | None:
    """Return the names of the classes that Hugging Face `datasets` or torchvision's data sets have, or None."""
    features: Any = getattr(source, "features", None)
    features = features if isinstance(features, Mapping) else {}  # a user's may be a tensor
    name = label_column(features)
    names = getattr(features[name], "names", None) if name else getattr(source, "classes", None)
    names = names.tolist() if isinstance(names, np.ndarray) else names
    is_list = isinstance(names, list | tuple) and all(isinstance(one, str) for one in names)
    return tuple(names) if names and is_list else None


def _wrapped_names(source: Any) -> Names | None:
    """Return the names of the classes of a data set, or of the one that torch's wrappers contain, or None."""
    if isinstance(source, Subset | DataLoader):
        return _wrapped_names(source.dataset)
    if isinstance(source, ConcatDataset):
        found = {_wrapped_names(part) for part in source.datasets}
        return found.pop() if len(found) == 1 else None
    return _class_names(source)

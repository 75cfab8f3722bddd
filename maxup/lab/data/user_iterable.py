"""Read a user's iterable to its end, into memory or to disk."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from maxup.errors import DataError, format_error
from maxup.lab.data.disk_cache import DiskCache
from maxup.lab.data.example import Label, row_columns
from maxup.lab.data.labels import Names
from maxup.lab.data.stream import check_shape, convert_example
from maxup.lab.data.tensors import check_layout
from maxup.lab.data.user_loader import kind_of
from maxup.lab.output import say
from maxup.lab.user_code import where_raised
from maxup.rng import process_rank

BLOCK = 2**26  # bytes of examples that are written to disk at a time
MOST_EXAMPLES = 10**8
PAUSE = 60  # seconds between messages


def exhaust(source: Iterable[Any], columns: Names, memory: int) -> tuple[Tensor | DiskCache, list[Label], Names]:
    """Read an iterable to its end: x, on disk above `memory` bytes, the labels, and the columns if x are rows."""
    blocks, labels, cache, name = list[Tensor](), list[Label](), None, kind_of(source)
    items, said = enumerate(iterate(source)), monotonic()
    first = next(items, None)
    if first is None:
        raise DataError(f"your {name} is empty; return at least one example")
    columns = columns or row_columns(first[1])
    for x, y in _blocks(chain([first], items), columns, name):
        blocks.append(x)
        labels += y
        if cache is None and len(labels) * x[0].nbytes > memory:
            check_layout(tuple(x.shape[1:]))
            cache = DiskCache(name, tuple(x.shape[1:]), x.dtype)
        if cache is not None:
            for block in blocks:
                cache.write(block, labels[len(cache) : len(cache) + len(block)])
            blocks.clear()
        if monotonic() > said + PAUSE and process_rank() == 0:
            said = monotonic()
            say(f"your {name} has more than {len(labels):,} examples; still reading", file=sys.stderr)
    return torch.cat(blocks) if cache is None else cache, labels, columns


def _blocks(items: Iterable[tuple[int, Any]], columns: Names, name: str) -> Iterator[tuple[Tensor, list[Label]]]:
    """Yield numbered examples in blocks, (B, ...), with their labels."""
    block, labels, known, first = list[Tensor](), list[Label](), dict[Label, Label](), None
    for row, item in items:
        if row == MOST_EXAMPLES:
            raise DataError(
                f"your {name} did not end after {row:,} examples, which is the most that an iterable may have; return "
                "a Dataset with __len__ and __getitem__, which is read batch by batch"
            )
        x, label = convert_example(item, row, columns)
        first = x if first is None else first
        check_shape(row, tuple(x.shape), tuple(first.shape))
        check_dtype(row, x, first)
        block.append(x.clone())  # an iterable may reuse its buffer
        labels.append(known.setdefault(label, label))  # one object per class
        if len(block) == 2**16 or len(block) * x.nbytes > BLOCK:
            yield torch.stack(block), labels
            block, labels = [], []
    if block:
        yield torch.stack(block), labels


def iterate(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a user's iterable. Raise its errors as DataError."""
    iterator = None
    while True:
        try:
            iterator = iter(source) if iterator is None else iterator
            item = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # of any type: it is not our code
            why = f"{format_error(error)}{where_raised(error)}"
            raise DataError(f"your {kind_of(source)} raised {why}; fix it") from error
        yield item


def check_dtype(row: int, x: Tensor, first: Tensor) -> None:
    """Raise a DataError if an example has another type than the first."""
    if x.dtype != first.dtype:
        raise DataError(f"example {row} of your data is {x.dtype}, but the first one is {first.dtype}; return one type")

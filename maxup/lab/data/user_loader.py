"""The examples of a user's DataLoader, without its batches and order, which the recipe sets."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)
from torch.utils.data import default_collate as collate

from maxup.errors import DataError, a_type


def of_loader(loader: DataLoader[Any]) -> Any:
    """Return the examples of a DataLoader. The recipe sets batches and order, so those of the loader are not used."""
    source: Any = loader.dataset
    if isinstance(source, IterableDataset):
        return _Unbatched(loader)
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler  # loader.sampler is not used if the batch sampler is the user's
    if isinstance(sampler, SubsetRandomSampler):
        source = Subset(source, list(sampler.indices))
    elif not _takes_all(sampler, source):
        raise DataError(f"your DataLoader has {a_type(sampler)}, but the recipe sets the order; return the data set")
    usual = loader.collate_fn is collate or loader.batch_size is None
    return source if usual else _Collated(source, loader.collate_fn)


def _takes_all(sampler: Any, source: Any) -> bool:
    """Whether a sampler takes each example exactly once, in any order."""
    if isinstance(sampler, SequentialSampler):
        return sampler.data_source is source or len(sampler) == len(source)
    return isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(source)


def kind_of(source: Any) -> str:
    """Return the class name of a user's data set, also if it came in a DataLoader."""
    source = source.loader.dataset if isinstance(source, _Unbatched) else source
    return type(source.source if isinstance(source, _Collated) else source).__name__


class _Collated:
    """A data set whose examples went through a DataLoader's collate_fn, one by one."""

    def __init__(self, source: Any, collate_fn: Any) -> None:
        self.source, self.collate_fn = source, collate_fn

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> Any:
        return next(_rows(self.collate_fn([self.source[row]])))


class _Unbatched:
    """The examples in the batches of a DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        loader = self.loader
        # Without workers: a data set that ignores get_worker_info() yields every example once per worker.
        for batch in DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn):
            yield from (batch,) if loader.batch_size is None else _rows(batch)


def _rows(batch: Any) -> Iterator[Any]:
    """Yield the examples of a batch, a dict of columns or a pair (x, y)."""
    if isinstance(batch, Mapping):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))
    else:
        yield from zip(*batch, strict=True)

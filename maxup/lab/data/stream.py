"""Labeled examples of a map-style data set that is too large for memory. Worker processes read them batch by batch."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from maxup.errors import DataError, error_message, format_error
from maxup.lab.data.example import Label, to_example
from maxup.lab.data.images import check_statistics, in_unit_range, mean_and_std, normalize
from maxup.lab.data.loader import Batch, Loader
from maxup.lab.data.tensors import prepare
from maxup.lab.data.workers import batches_from_workers
from maxup.lab.user_code import where_raised
from maxup.rng import hash_seed, seed_globals

SAMPLE = 1000  # examples that mean and std are computed from
PROBE = 16  # examples that are part of the digest


@dataclass(frozen=True, eq=False)
class Stream:
    """Some examples of a data set, with the interface of `Images`.

    Args:
        source: The data set: `source[i]` is an example that `to_example` takes.
        rows: Indices of the examples in the data set, (N,).
        y: Classes, int64, (N,). They split the examples; a batch has the labels that the data set returned for it.
        classes: Names of the classes.
        shape: Shape of an example.
        dtype: Type of an example: bytes, float32 or int64.
        mean: Mean of x / top per channel. () for token ids.
        std: Standard deviation, likewise.
        augmented: Whether an example differs from call to call, because of a random transform.
        workers: Worker processes that read. 0 reads in the main process.
        numbers: The class of each label of the data set.
        columns: Names of the columns of rows, in order. () if they have none.
    """

    source: Any = field(repr=False)
    rows: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmented: bool = False
    workers: int = 8
    numbers: dict[Label, int] = field(default_factory=dict, repr=False)
    columns: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_statistics(self)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def top(self) -> int:
        """The value of a pixel of 1.0."""
        return 255 if self.dtype == torch.uint8 else 1

    @property
    def digest(self) -> str:
        """SHA-256 of the labels, and of some examples unless they are augmented."""
        digest = hashlib.sha256(f"{len(self)} {self.shape} {self.dtype}".encode())
        digest.update(self.y.numpy().tobytes())
        for row in [] if self.augmented else self.rows[:: max(len(self) // PROBE, 1)].tolist():
            digest.update(self.read(row).numpy().tobytes())
        return digest.hexdigest()

    def loader(self, batch_size: int, *, training: bool, **options: Any) -> "StreamLoader":
        """Return a loader: shuffled, with equal ranks, in training; otherwise in order, each example exactly once."""
        return StreamLoader(self, batch_size, training=training, **options)

    def subset(self, indices: Tensor | Sequence[int]) -> "Stream":
        """Return these examples, in this order."""
        chosen = torch.as_tensor(indices).long()
        return replace(self, rows=self.rows[chosen], y=self.y[chosen])

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x / top - mean) / std. Token ids are returned as they are."""
        return normalize(x, self.mean, self.std, self.top, len(self.shape) - 1)

    def with_statistics(self) -> "Stream":
        """Return the same examples with the mean and std of up to `SAMPLE` of them, evenly spaced."""
        rows = self.rows[:: -(-len(self) // SAMPLE)].tolist()
        mean, std = mean_and_std((self.read(row)[None] for row in rows), self.top)
        return replace(self, mean=mean, std=std)

    @property
    def in_unit_range(self) -> bool:
        """Whether x / top is in [0, 1]: always for bytes, otherwise judged by some examples."""
        rows = [] if self.dtype == torch.uint8 else self.rows[:: max(len(self) // PROBE, 1)].tolist()
        return all(in_unit_range(self.read(row)) for row in rows)

    def read(self, row: int) -> Tensor:
        """Return an example of the data set by its index there."""
        x, _ = read_example(self.source, row, columns=self.columns)
        check_shape(row, tuple(x.shape), self.shape)
        return x


class StreamLoader(Loader):
    """A loader that reads examples when they are needed.

    An augmentation inside the data set draws from the global generators of torch, numpy and Python. They are seeded
    per example, in training with (seed, epoch, index). So the number of workers changes nothing, a resumed run sees
    the same examples, and evaluation always sees the same.

    Args:
        batch_size: Examples per batch and rank.
        options: Options of `Loader`: training, seed, device, drop_last, rank, world_size.
    """

    def __init__(self, stream: Stream, batch_size: int, **options: Any) -> None:
        super().__init__(len(stream), batch_size, **options)
        self.stream = stream

    def _batches(self, rows: tuple[Tensor, ...]) -> Iterator[Batch]:
        stream = self.stream
        where = [stream.rows[part].tolist() for part in rows]
        seed = (self.seed, self.epoch) if self.training else ()
        reader = Reader(stream.source, where, seed, stream.shape, stream.columns)
        for indices, (x, labels) in zip(rows, read_batches(reader, stream.workers, self.device), strict=True):
            if x.dtype != stream.dtype:
                raise DataError(f"your data are {stream.dtype} at first, but later {x.dtype}; return one type")
            y = self._classes(indices, labels)
            yield self._to_device(indices), self._to_device(x), self._to_device(y)

    def _classes(self, indices: Tensor, labels: list[Label]) -> Tensor:
        """Return the classes of the labels that the data set returned. They may differ from its column or `targets`."""
        numbers = self.stream.numbers
        for i, label in zip(indices.tolist(), labels, strict=True):
            if label not in numbers:
                raise DataError(
                    f"example {int(self.stream.rows[i])} of your data has the label {label!r}, which is not among the "
                    "labels that were read at the start, from its column or targets if there are some; return the "
                    "same labels there"
                )
        return torch.tensor([numbers[label] for label in labels])


class Reader(Dataset[tuple[Tensor, list[Label]] | str]):
    """Batches by number: the examples (B, ...) and their labels, or an error message.

    Args:
        source: The data set.
        rows: Indices of the examples of each batch.
        seed: Seeds the augmentation, together with the index of the example.
        shape: Shape of the examples. None reads only the labels.
        columns: Names of the columns of rows, in order.
    """

    def __init__(
        self,
        source: Any,
        rows: list[list[int]],
        seed: tuple[int, ...],
        shape: tuple[int, ...] | None,
        columns: tuple[str, ...] = (),
    ) -> None:
        self.source, self.rows, self.seed, self.shape, self.columns = source, rows, seed, shape, columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, list[Label]] | str:
        try:
            examples = [read_example(self.source, row, self.seed, self.columns) for row in self.rows[number]]
            if self.shape is None:
                return torch.empty(0), [y for _, y in examples]
            for row, (x, _) in zip(self.rows[number], examples, strict=True):
                check_shape(row, tuple(x.shape), self.shape)
            return torch.stack([x for x, _ in examples]), [y for _, y in examples]
        except DataError as error:  # as text: a DataLoader adds a traceback to an exception
            return str(error)


def read_batches(reader: Reader, workers: int, device: torch.device) -> Iterator[tuple[Tensor, list[Label]]]:
    """Yield the batches of a reader. Raise its error messages as DataError."""
    if workers:
        try:
            ForkingPickler.dumps(reader.source)
        except Exception as error:  # of any type: it is not our code
            raise DataError(
                f"your data set cannot be sent to worker processes ({error_message(error)[:150]}); define its "
                "functions and classes at the top of a module, without lambda, or set data.workers to 0"
            ) from None
    for batch in batches_from_workers(reader, workers, device):
        if isinstance(batch, str):
            raise DataError(batch)
        yield batch


def read_example(
    source: Any, row: int, seed: tuple[int, ...] = (), columns: tuple[str, ...] = ()
) -> tuple[Tensor, Label]:
    """Read an example with seeded generators. x is in a type and shape that `Images` takes."""
    return convert_example(read_item(source, row, seed), row, columns)


def read_item(source: Any, row: int, seed: tuple[int, ...] = ()) -> Any:
    """Read an example with seeded generators, as the data set returns it."""
    with seed_globals(hash_seed("example", *seed, row)):
        try:
            return source[row]
        except Exception as error:  # of any type: it is not our code
            why = f"{format_error(error)} for example {row}{where_raised(error)}"
            raise DataError(f"your data set raised {why}") from error


def convert_example(item: Any, row: int, columns: tuple[str, ...] = ()) -> tuple[Tensor, Label]:
    """Return x and the class of an example. x is in a type and shape that `Images` takes."""
    try:
        x, y = to_example(item, columns)
        return prepare(x[None])[0], y
    except DataError as error:
        raise DataError(f"{error} (example {row})") from None


def check_shape(row: int, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    """Raise a DataError if an example has another shape than the first."""
    if shape != first:
        advice = "examples of one size, for example with a transform that resizes images or pads tokens"
        if len(shape) == len(first) == 3 and shape[1:] == first[1:]:
            advice = 'images with equal numbers of channels, for example image.convert("RGB")'
        raise DataError(f"example {row} of your data has shape {shape}, but the first one has {first}; return {advice}")

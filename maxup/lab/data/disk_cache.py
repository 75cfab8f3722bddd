"""Examples of an iterable that is too large for memory, in a temporary file."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from maxup.errors import DataError, error_message
from maxup.lab.data.example import Label
from maxup.lab.output import say
from maxup.rng import process_rank

SPARE = 2**30  # bytes that stay free on the disk
ADVICE = "set TMPDIR to a folder with more free space, or return a Dataset with __len__ and __getitem__"


class DiskCache(Dataset[tuple[Tensor, Label]]):
    """A map-style data set of the examples that were written to it. Worker processes can read it.

    The file is in the folder that TMPDIR names, usually /tmp. It has no name there, so the system removes it when the
    process ends, also if it is killed. Workers open it by its descriptor, in /proc.

    Args:
        name: Class name of the user's data set, for messages.
        shape: Shape of an example.
        dtype: Type of an example.

    Example:
        >>> cache = DiskCache("Animals", (2,), torch.float32)
        >>> cache.write(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), ["cat", "dog"])
        >>> len(cache), cache[1]
        (2, (tensor([3., 4.]), 'dog'))
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.size = 8 + prod(shape) * dtype.itemsize  # bytes per example: the index of its label as int64, then x
        self.count, self.labels, self.index = 0, list[Label](), dict[Label, int]()
        with self._disk_errors():
            self.file, path = tempfile.mkstemp(prefix="maxup-")
            os.unlink(path)
        if process_rank() == 0:
            folder = tempfile.gettempdir()
            say(f"your {name} is too large for memory, so its examples are written to {folder}", file=sys.stderr)

    def write(self, x: Tensor, labels: list[Label]) -> None:
        """Append examples, (B, ...), and their labels."""
        y = torch.tensor([self.index.setdefault(label, len(self.index)) for label in labels])
        self.labels = [*self.index]
        records = torch.cat([part.cpu().view(len(x), -1).view(torch.uint8) for part in (y, x)], 1)  # (B, size)
        with self._disk_errors():
            disk = os.fstatvfs(self.file)
            if disk.f_bavail * disk.f_frsize - records.numel() < SPARE:
                raise DataError(
                    f"your {self.name} is too large for memory, and after {self.count:,} examples on disk, "
                    f"{tempfile.gettempdir()} has less than {SPARE / 2**30:.0f} GiB left; return an iterable that "
                    f"ends, {ADVICE}"
                )
            left = records.flatten().numpy().data
            while left:
                left = left[os.write(self.file, left) :]  # it may write less
        self.count += len(x)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise errors of the disk as DataError."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"your {self.name} is too large for memory and cannot be written to a temporary file "
                f"({error_message(error)}); {ADVICE}"
            ) from error

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Tensor, Label]:
        record = torch.empty(self.size, dtype=torch.uint8)
        if os.preadv(self.file, [record.numpy().data], row * self.size) < self.size:
            raise IndexError(row)
        return record[8:].view(self.dtype).view(self.shape), self.labels[int(record[:8].view(torch.int64))]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"file": f"/proc/{os.getpid()}/fd/{self.file}"}  # a path for workers

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, file=os.open(state["file"], os.O_RDONLY))

    def __del__(self) -> None:
        if "file" in vars(self):
            os.close(self.file)

"""An iterable that is too large for memory gives the same examples from disk, and leaves nothing there."""

import errno
import os
import tempfile
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from maxup.errors import DataError
from maxup.lab.data import disk_cache, user_data, user_iterable
from maxup.lab.data.disk_cache import DiskCache
from maxup.lab.data.images import Images
from maxup.lab.data.stream import Stream
from maxup.lab.data.user_data import from_user
from tests.lab.data.test_user_data import EndlessIterable, Iterable, X, Y

ROWS = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)).tolist()
KINDS = {
    "iterable": Iterable,
    "generator": lambda: (pair for pair in zip(X, Y, strict=True)),
    "loader": lambda: DataLoader(Iterable(), batch_size=7),
    "names": lambda: ((x, "cat" if y else "ant") for x, y in zip(X, Y, strict=True)),
    "not contiguous": lambda: ((x.transpose(1, 2), y) for x, y in zip(X, Y, strict=True)),
    "float images": lambda: ((x / 255, y) for x, y in zip(X, Y, strict=True)),
    "rows": lambda: ({"b": b, "a": a, "label": int(a > b)} for a, b in ROWS),
    "tokens": lambda: ((x[0, 0].int(), y) for x, y in zip(X, Y, strict=True)),
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(user_iterable, "BLOCK", 300)


@pytest.fixture
def _on_disk(monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", 1000)


def batches(data, workers=0):
    data = replace(data, workers=workers) if isinstance(data, Stream) else data
    return list(data.loader(8, training=True, seed=3, device="cpu"))


def are_equal(some, others):
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def open_files(folder):
    """Return the open files of this process that were in a folder."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # of listdir
            continue
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_on_disk_are_the_same_as_in_memory(kind, monkeypatch, capsys, tmp_path):
    kept, _ = from_user(KINDS[kind]())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(user_data, "MEMORY", 1000)
    cached, _ = from_user(KINDS[kind]())
    assert (type(kept), type(cached), type(cached.source)) == (Images, Stream, DiskCache)
    assert capsys.readouterr().err.endswith(f" is too large for memory, so its examples are written to {tmp_path}\n")
    for name in ("shape", "dtype", "top", "classes", "columns", "in_unit_range"):
        assert getattr(cached, name) == getattr(kept, name)
    assert torch.equal(cached.y, kept.y)
    assert cached.mean == pytest.approx(kept.mean)
    assert cached.std == pytest.approx(kept.std)
    assert are_equal(batches(cached), batches(kept))
    assert cached.digest == from_user(KINDS[kind]())[0].digest


@pytest.mark.usefixtures("_on_disk")
def test_workers_read_the_file(tmp_path):
    train, _ = from_user(KINDS["names"]())
    assert are_equal(batches(train, workers=2), batches(train))
    assert len(open_files(tmp_path)) == 1
    del train
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("_on_disk")
def test_the_file_has_no_name_and_is_closed_after_an_error(tmp_path):
    seen = []

    def examples():
        for pair in zip(X, Y, strict=True):
            seen.append((len(open_files(tmp_path)), os.listdir(tmp_path)))
            yield pair
        raise KeyError("x")

    with pytest.raises(
        DataError, match=r"^your generator raised KeyError: 'x' \(test_disk_cache.py, line \d+\); fix it$"
    ):
        from_user(examples())
    assert seen[0] == (0, [])
    assert seen[-1] == (1, [])
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("_on_disk")
def test_an_endless_iterable_leaves_space_on_the_disk(monkeypatch, tmp_path):
    free = os.statvfs(tmp_path)
    monkeypatch.setattr(disk_cache, "SPARE", free.f_bavail * free.f_frsize + 2**60)
    with pytest.raises(
        DataError,
        match=r"^your EndlessIterable is too large for memory, and after 0 examples on disk, .* has less than \d+ GiB "
        r"left; return an iterable that ends, set TMPDIR to a folder with more free space, or return a Dataset",
    ):
        from_user(EndlessIterable())


@pytest.mark.usefixtures("_on_disk")
@pytest.mark.parametrize("function", ["write", "unlink", "fstatvfs"])
def test_errors_of_the_disk_are_one_sentence(function, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, function, full)
    with pytest.raises(
        DataError,
        match=r"^your Iterable is too large for memory and cannot be written to a temporary file \(No space left on "
        r"device\); set TMPDIR to a folder with more free space, or return a Dataset with __len__ and __getitem__$",
    ):
        from_user(Iterable())


def test_the_system_may_write_less_than_asked(monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:50]))
    cache = DiskCache("Iterable", (3, 6, 5), torch.uint8)
    cache.write(X, Y.tolist())
    assert [len(cache), *cache.labels] == [30, 0, 1, 2]
    assert all(torch.equal(cache[i][0], X[i]) and cache[i][1] == Y[i] for i in range(30))
    with pytest.raises(IndexError):
        cache[30]

"""A lock ends with its process, however that ends; a second process is told who holds it."""

import os
import signal
import time

import pytest

from maxup.errors import CheckpointError
from maxup.lab.storage.locks import locked
from tests.lab.storage.test_checkpoint import processes
from tests.waiting import PATIENCE


def _hold(folder, pipe, fork):
    with locked(folder):
        child = os.fork() if fork else 0
        if fork and not child:
            time.sleep(PATIENCE)
            os._exit(0)
        pipe.send((os.getpid(), child))
        time.sleep(PATIENCE)


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a worker"])
def test_the_lock_ends_with_its_process(fork, tmp_path):
    here, there = processes.Pipe()
    holder = processes.Process(target=_hold, args=(tmp_path / "run", there, fork), daemon=True)
    holder.start()
    pid, child = here.recv()
    with pytest.raises(CheckpointError, match=f"run is in use by process {pid}; wait for it, or stop it$"):
        locked(tmp_path / "run").__enter__()
    holder.kill()
    holder.join()
    try:
        with locked(tmp_path / "run"):
            assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_one_lock_at_a_time(tmp_path):
    for _ in range(2):
        with locked(tmp_path):
            with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"), locked(tmp_path):
                pass
            (tmp_path / ".lock").write_text("nobody")
            with pytest.raises(CheckpointError, match=r"in use by process \?"), locked(tmp_path):
                pass
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        1 / 0  # noqa: B018
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("name", ["", "table.tsv"])
def test_a_forked_child_that_leaves_the_block_does_not_release_the_lock(name, tmp_path):
    block = locked(tmp_path, name)
    with block:
        if not (child := os.fork()):
            block.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"), locked(tmp_path, name):
            pass


def test_the_lock_of_a_file_leaves_nothing_behind(tmp_path):
    with locked(tmp_path, "table.tsv"), locked(tmp_path, "other.tsv"), locked(tmp_path):
        assert {p.name for p in tmp_path.iterdir()} == {".lock", ".table.tsv.lock", ".other.tsv.lock"}
    assert {p.name for p in tmp_path.iterdir()} == {".lock"}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_not_a_regular_file(make, tmp_path):
    make(tmp_path / ".lock")
    with pytest.raises(CheckpointError, match=r"cannot be locked: .*\.lock is not a regular file"), locked(tmp_path):
        pass


def test_a_lock_that_links_elsewhere(tmp_path):
    (tmp_path / "precious").write_text("text")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="cannot be locked"), locked(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "text"

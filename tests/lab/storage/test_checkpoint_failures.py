"""Killed, or out of space, at any moment of a save: the last good checkpoint is there."""

import errno
import itertools
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from maxup.errors import CheckpointError
from maxup.lab.storage import atomic_io
from maxup.lab.storage.checkpoint import best, latest, load, save
from maxup.lab.storage.locks import locked
from tests.lab.storage.test_checkpoint import Training, processes, refuse, state_of, steps, temporary
from tests.lab.storage.test_state_io import same


def _train(folder):
    """Resume, and save every step, until killed."""
    torch.set_num_threads(1)  # as in the tests: sums depend on it
    training = Training("momentum")
    step, state = latest(folder, refuse) or (0, None)
    if state:
        training.resume(state)
    while True:
        training.train(1)
        step += 1
        save(folder, step, training.state() | {"ballast": torch.full((300_000,), step)}, best=step % 3 == 0)
        Path(folder, "started").touch()


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    straight, done, moments = Training("momentum"), 0, random.Random()
    for _ in range(6):
        (tmp_path / "started").unlink(missing_ok=True)
        child = processes.Process(target=_train, args=(tmp_path,), daemon=True)
        child.start()
        while not (tmp_path / "started").exists():
            assert child.is_alive()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.12))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        step, state = latest(tmp_path, refuse)
        assert step > done
        straight.train(step - done)
        done = step
        assert same(state, straight.state() | {"ballast": torch.full((300_000,), step)})
        assert (best(tmp_path, refuse) or [0])[0] == step // 3 * 3
    save(tmp_path, done + 1, {})
    assert not temporary(tmp_path)  # of the dead


CHANGES = ["mkdir", "fsync", "rename", "replace"]  # of a disk


def _interrupt(patch, point, names, act):
    """Let one of the calls that change a disk, by number, end in `act`, a write half done; count them."""
    calls = itertools.count()

    def interrupted(original):
        def call(*args, **kwargs):
            if next(calls) == point:
                act()
            return original(*args, **kwargs)

        return call

    def half(path, mode):
        file = open(path, mode)  # noqa: SIM115
        if mode == "xb" and next(calls) == point:
            with file:
                file.write(b"{")
                file.flush()
                act()
        return file

    for name in names:
        patch.setattr(os, name, interrupted(getattr(os, name)))
    patch.setattr(atomic_io, "open", half, raising=False)
    return calls


def _save_and_die(folder, step, point):
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    _interrupt(pytest.MonkeyPatch(), point, [*CHANGES, "rmdir", "unlink"], kill)
    save(folder, step, state_of(step) | {"new": True}, keep=1, best=True)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3])  # 2 replaces a checkpoint
def test_killed_at_every_moment(step, tmp_path):
    new = (step, state_of(step) | {"new": True})
    for point in itertools.count():
        folder = tmp_path / str(point)
        save(folder, 1, state_of(1), best=True)
        save(folder, 2, state_of(2))
        child = processes.Process(target=_save_and_die, args=(folder, step, point), daemon=True)
        child.start()
        child.join()
        found = latest(folder, refuse)
        assert same(found, (2, state_of(2))) or same(found, new)
        assert all(load(path) for path in folder.glob("step-*"))  # none is half removed
        assert best(folder, refuse)[0] in ((step,) if same(found, new) else (1, step))
        save(folder, 4, state_of(4), keep=1, best=True)
        assert steps(folder) == [4]
        assert not temporary(folder)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert same(found, new)
    assert point > 12


def _full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", [0, 2, 3])  # 0 is the first, 2 replaces a checkpoint
def test_a_full_disk_at_every_moment(step, tmp_path):
    new = (step, state_of(step) | {"new": True})
    last = "the last good checkpoint is step 2" if step else "there is no good checkpoint yet"
    for point in itertools.count():
        folder, failure = tmp_path / str(point), None
        for earlier in (1, 2) if step else ():
            save(folder, earlier, state_of(earlier), best=earlier == 1)
        with pytest.MonkeyPatch.context() as patch:
            calls = _interrupt(patch, point, CHANGES, _full)
            try:
                save(folder, *new, best=True)
            except CheckpointError as error:
                failure = str(error)
        assert not temporary(folder)
        found = latest(folder, refuse)
        if failure is None:
            assert same(found, new)  # what failed, if anything, was the removal of others
        else:
            why = failure.replace(" (best.json)", "")  # the one file of these that is replaced
            assert why == f"could not save step {step} in {folder}: No space left on device; {last}"
            assert same(found, new) or same(found, (2, state_of(2)) if step else None)
            if step:
                assert best(folder, refuse)[0] in (1, step)
                assert {1, 2} <= set(steps(folder))
        if next(calls) <= point:
            break
    assert failure is None
    assert point > 8


def test_a_file_that_may_not_grow(tmp_path):
    """The real thing: the system refuses the write."""
    save(tmp_path, 1, state_of(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 100, 5000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(CheckpointError, match=r"File too large; the last good checkpoint is step 1$"):
                save(tmp_path, 2, state_of(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(latest(tmp_path, refuse), (1, state_of(1)))
    assert steps(tmp_path) == [1]
    assert not temporary(tmp_path)


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"could not save step 1 in .*; there is no good checkpoint yet"):
        save(tmp_path / "file", 1, {})
    with pytest.raises(CheckpointError, match="cannot be searched"):
        latest(tmp_path / "file", refuse)
    with pytest.raises(CheckpointError, match="cannot be locked"), locked(tmp_path / "file"):
        pass

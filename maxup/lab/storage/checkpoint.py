"""Checkpoints: tensors in safetensors, the rest in JSON, and a manifest of both written last.

A process killed at any moment leaves a whole checkpoint behind, and nothing that is read here can run code.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch

from maxup.errors import CheckpointError, error_message
from maxup.lab.storage.atomic_io import (
    check_regular,
    dump,
    make_folder,
    parse,
    put,
    read,
    replace,
    sha256,
    sweep,
    sync,
    temporary,
    write,
)  # fmt: skip
from maxup.lab.storage.state_io import pack, unpack
from maxup.validate import check_positive_int

HEAD = {"format": "maxup-checkpoint", "version": 1}
TENSORS, STATE, MANIFEST, BEST = "tensors.safetensors", "state.json", "manifest.json", "best.json"
Folder = str | os.PathLike[str]
Warn = Callable[[str], Any]


def save(folder: Folder, step: int, state: Any, *, keep: int = 2, best: bool = False) -> Path:
    """Write `folder/step-000123`; then remove all but the newest checkpoints and the best.

    Everything goes to a temporary folder first, is synced and then renamed. An existing checkpoint of the same step is
    replaced. Those of later steps, from a future that a damaged file made you leave, are left alone.

    Args:
        folder: Where the checkpoints of one run are. One process at a time: hold `locked(folder)`.
        step: The number of steps done.
        state: What `pack` takes.
        keep: How many of the newest to keep.
        best: Whether this one is the best so far, kept until another is.

    Raises:
        CheckpointError: The disk is full, say; earlier checkpoints are as they were.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(folder, 7, {"lr": 0.1})
        ...     path.name, load(path), latest(folder, print)
        ('step-000007', {'lr': 0.1}, (7, {'lr': 0.1}))
    """
    if type(step) is not int or step < 0:
        raise ValueError(f"step={step!r}: a step must be a whole number, 0 or more")
    check_positive_int("keep", keep)
    _refuse_link(Path(folder))
    tensors, document = pack(state)
    files = {TENSORS: safetensors.torch.save(tensors), STATE: dump(document)}
    about = {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()}
    files[MANIFEST] = dump(HEAD | {"step": step, "files": about})
    folder, before = Path(folder), []
    new, final = temporary(folder / "new"), folder / f"step-{step:06d}"
    try:
        make_folder(folder)
        sweep(folder)
        before = _found(folder)
        new.mkdir()
        for name, data in files.items():
            write(new / name, data)
        sync(new)
        if best:
            _mark_best(folder, step)
        put(new, final)
        sync(folder)
        sync(folder.parent)  # of the folder's own name, and of what lies beside it, at the first save
        _prune(folder, step, keep)
    except OSError as error:
        good = next(_whole(before, lambda sentence: None), None)
        last = f"the last good checkpoint is step {good[0]}" if good else "there is no good checkpoint yet"
        raise CheckpointError(f"could not save step {step} in {folder}: {error_message(error)}; {last}") from error
    finally:
        sweep(folder)
    return final


def load(path: Folder) -> Any:
    """The state in a checkpoint's folder, its tensors on the CPU; a CheckpointError if anything is wrong with it.

    Example:
        >>> load("x")
        Traceback (most recent call last):
        maxup.errors.CheckpointError: x is not a whole checkpoint: No such file or directory \
(manifest.json)
    """
    return _load(Path(path))[1]


def latest(folder: Folder, warn: Warn) -> tuple[int, Any] | None:
    """Step and state of the newest checkpoint that loads, or None; `warn` gets a sentence for each damaged one.

    Example:
        >>> latest("nowhere", print)
    """
    return next(each(folder, warn), None)


def each(folder: Folder, warn: Warn) -> Iterator[tuple[int, Any]]:
    """Step and state of every checkpoint that loads, newest first; `warn` gets a sentence for each damaged one.

    Example:
        >>> list(each("nowhere", print))
        []
    """
    _refuse_link(Path(folder))
    return _whole(_found(Path(folder)), warn)


def best(folder: Folder, warn: Warn) -> tuple[int, Any] | None:
    """Step and state of the checkpoint last saved as the best, or None; `warn` gets a sentence if it is damaged.

    Example:
        >>> best("nowhere", print)
    """
    _refuse_link(Path(folder))
    try:
        steps = _best_steps(Path(folder))
    except CheckpointError as error:
        warn(str(error))
        return None
    found = [item for step in steps for item in _found(Path(folder)) if item[0] == step]
    if steps and not found:
        warn(f"{Path(folder, BEST)} says that step {steps[0]} is the best, but there is no checkpoint of it")
    return next(_whole(found, warn), None)


@contextmanager
def locked(folder: Folder, what: str = "") -> Iterator[None]:
    """Keep others off a folder, or off one file in it; the lock ends with the block, or with the process.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(folder):
        ...     Path(folder, ".lock").read_text() == str(os.getpid())
        True
    """
    lock, place = -1, Path(folder, f".{what}.lock" if what else ".lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        check_regular(place)
        while True:
            lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if place.exists() and os.path.samestat(os.fstat(lock), place.lstat()):
                break
            os.close(lock)  # its holder has just ended, and taken it away
            lock = -1
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except (OSError, ValueError) as error:
        why = f"cannot be locked: {error_message(error)}"
        if isinstance(error, BlockingIOError):
            holder = os.pread(lock, 20, 0)
            why = f"is in use by process {int(holder) if holder.isdigit() else '?'}: let it end, or end it"
        if lock >= 0:
            os.close(lock)
        raise CheckpointError(f"{Path(folder, what)} {why}") from error
    _locks.add(lock)
    try:
        yield
    finally:
        if lock in _locks:  # not so in a forked child
            _locks.remove(lock)
            if what:
                place.unlink(missing_ok=True)
            os.close(lock)


_locks: set[int] = set()


def _let_go() -> None:
    """In a forked child (a loader's worker), which would otherwise hold the lock of a killed parent."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_let_go)


def _refuse_link(folder: Path) -> None:
    """What is written to or removed from a run's folder must be in it; that folder itself may be behind a link."""
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link; move the folder itself there, or link the run's folder instead")


def _load(path: Path) -> tuple[int, Any]:
    """Step and state of a checkpoint, after all it promises has been checked."""
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        match parse(MANIFEST, read(path / MANIFEST)):
            case {"format": "maxup-checkpoint", "version": version} if version != HEAD["version"]:
                raise ValueError(f"its format is of another version than {HEAD['version']}, the one read here")
            case {
                "format": "maxup-checkpoint",
                "version": int(),
                "step": int(step),
                "files": {"tensors.safetensors": tensors_promise, "state.json": state_promise},
            }:
                packed = read(path / TENSORS, tensors_promise)
                document = parse(STATE, read(path / STATE, state_promise))
            case _:
                raise ValueError(f"{MANIFEST} is not that of a checkpoint")
        try:
            tensors = safetensors.torch.load(packed)
        except Exception as error:  # of whatever type: the file may be hostile, with a manifest to match
            raise ValueError(f"{TENSORS} cannot be read: {error}") from error
        # Copied to memory aligned as torch's own is, lest a kernel should sum in another order after a resume.
        return step, unpack({name: tensor.clone() for name, tensor in tensors.items()}, document)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: {error_message(error)}") from error


def _whole(found: list[tuple[int, Path]], warn: Warn) -> Iterator[tuple[int, Any]]:
    """Those that load."""
    for step, path in found:
        try:
            written, state = _load(path)
            if written != step:
                raise CheckpointError(f"{path} is not a whole checkpoint: its manifest is of another step")
        except CheckpointError as error:
            warn(str(error))
        else:
            yield step, state


def _found(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints there, whole or not, newest first; after each, the one it was about to replace."""
    try:
        matches = [(re.fullmatch(r"step-(\d{6}|[1-9]\d{6,})(\.old)?", p.name, re.ASCII), p) for p in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be searched for checkpoints: {error_message(error)}") from error
    return sorted(((int(match[1]), path) for match, path in matches if match), key=lambda item: (-item[0], item[1]))


def _best_steps(folder: Path) -> list[int]:
    """The step of the best checkpoint, then that of the best before it, which counts until the former is in place."""
    try:
        match parse(BEST, read(folder / BEST)):
            case {"format": "maxup-checkpoint", "version": 1, "step": int(step), "before": int() | None as before}:
                return [step] if before is None else [step, before]
        raise ValueError(f"{BEST} names no step")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder} does not say which checkpoint is the best: {error_message(error)}") from error


def _best_there(folder: Path) -> int | None:
    there = {step for step, _ in _found(folder)}
    return next((step for step in _best_steps(folder) if step in there), None)


def _mark_best(folder: Path, step: int) -> None:
    """Before the checkpoint is in place: if this process dies between the two, the best before it is still known."""
    before = None
    with suppress(CheckpointError):
        before = _best_there(folder)
    replace(folder / BEST, dump(HEAD | {"step": step, "before": before}))


def _prune(folder: Path, step: int, keep: int) -> None:
    """Rename what is to go, so that none is ever seen half removed; `sweep` removes it."""
    with suppress(CheckpointError, OSError):  # where it is unknown which is the best, all stay; so does what must
        found = _found(folder)
        stay = {*sorted({s for s, _ in found if s <= step})[-keep:], _best_there(folder)}
        for s, path in found:
            if (s <= step and s not in stay) or (path.suffix == ".old" and os.path.lexists(path.with_suffix(""))):
                path.rename(temporary(path))

"""Checkpoints: tensors in safetensors, the rest in JSON, and a manifest with the checksums of both.

A process killed at any moment leaves a valid checkpoint, and loading one never executes code. What a run's
checkpoint contains is in `maxup.lab.train.state`.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch

from maxup.errors import CheckpointError, error_message
from maxup.lab.storage import atomic_io
from maxup.lab.storage.atomic_io import dump, parse, read, sha256, temporary
from maxup.lab.storage.state_io import pack, unpack
from maxup.validate import check_positive_int

HEAD = {"format": "maxup-checkpoint", "version": 1}
TENSORS, STATE, MANIFEST, BEST = "tensors.safetensors", "state.json", "manifest.json", "best.json"
Folder = str | os.PathLike[str]
Warn = Callable[[str], Any]


def save(folder: Folder, step: int, state: Any, *, keep: int = 2, best: bool = False) -> Path:
    """Write `folder/step-000123`, then remove all but the newest checkpoints and the best one.

    The files go to a temporary folder, which is synced and then renamed. An existing checkpoint of the same step is
    replaced. Checkpoints of later steps stay.

    Args:
        folder: The folder of one run's checkpoints. One process at a time may write: hold `locked(folder)`.
        step: The number of steps done.
        state: Anything that `pack` accepts.
        keep: The number of newest checkpoints to keep.
        best: Whether this is the best checkpoint so far. It is kept until there is a better one.

    Raises:
        CheckpointError: The checkpoint cannot be written. Earlier checkpoints are unchanged.
    """
    if type(step) is not int or step < 0:
        raise ValueError(f"step={step!r}: a step must be a whole number, 0 or more")
    check_positive_int("keep", keep)
    folder = _not_a_link(folder)
    tensors, document = pack(state)
    files = {TENSORS: safetensors.torch.save(tensors), STATE: dump(document)}
    checksums = {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()}
    files[MANIFEST] = dump(HEAD | {"step": step, "files": checksums})
    new, final, before = temporary(folder / "new"), folder / f"step-{step:06d}", list[tuple[int, Path]]()
    try:
        atomic_io.make_folder(folder)
        atomic_io.remove_leftovers(folder)
        before = _list(folder)
        new.mkdir()
        for name, data in files.items():
            atomic_io.write(new / name, data)
        atomic_io.sync(new)
        if best:
            _mark_best(folder, step)
        atomic_io.move_into_place(new, final)
        atomic_io.sync(folder)
        atomic_io.sync(folder.parent)  # the name of the folder itself, and of the files beside it
        _prune(folder, step, keep)
    except OSError as error:
        good = next(_load_each(before, lambda message: None), None)
        last = f"the last good checkpoint is step {good[0]}" if good else "there is no good checkpoint yet"
        raise CheckpointError(f"could not save step {step} in {folder}: {error_message(error)}; {last}") from error
    finally:
        atomic_io.remove_leftovers(folder)
    return final


def load(path: Folder) -> Any:
    """Load the state in a checkpoint's folder, with tensors on the CPU.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
    """
    return _load(Path(path))[1]


def latest(folder: Folder, warn: Warn) -> tuple[int, Any] | None:
    """Return step and state of the newest checkpoint that loads, or None. See `each`."""
    return next(each(folder, warn), None)


def each(folder: Folder, warn: Warn) -> Iterator[tuple[int, Any]]:
    """Iterate over step and state of the checkpoints that load, newest first. `warn` gets a message for each other one.

    Example:
        >>> list(each("nowhere", print))
        []
    """
    return _load_each(_list(_not_a_link(folder)), warn)


def best(folder: Folder, warn: Warn) -> tuple[int, Any] | None:
    """Return step and state of the checkpoint last saved as the best, or None. `warn` is called if it is damaged."""
    folder = _not_a_link(folder)
    try:
        steps = _best_steps(folder)
    except CheckpointError as error:
        warn(str(error))
        return None
    found = [item for step in steps for item in _list(folder) if item[0] == step]
    if steps and not found:
        warn(f"the best checkpoint is step {steps[0]}, according to {folder / BEST}, but it is missing")
    return next(_load_each(found, warn), None)


def _not_a_link(folder: Folder) -> Path:
    """Reject a folder that is a link: what is written or removed must be inside the run's folder."""
    if Path(folder).is_symlink():
        raise CheckpointError(f"{folder} is a link; move the folder itself there, or link the run's folder instead")
    return Path(folder)


def _load(path: Path) -> tuple[int, Any]:
    """Load step and state of a checkpoint after checking its manifest."""
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        match parse(MANIFEST, read(path / MANIFEST)):
            case {"format": "maxup-checkpoint", "version": version} if version != HEAD["version"]:
                raise ValueError(
                    f"its format version is {version!r:.20}, but this version of maxup reads {HEAD['version']}"
                )
            case {"format": "maxup-checkpoint", "version": int(), "step": int(step), "files": {**files}}:
                packed = read(path / TENSORS, files.get(TENSORS) or {})
                document = parse(STATE, read(path / STATE, files.get(STATE) or {}))
            case _:
                raise ValueError(f"{MANIFEST} does not describe a checkpoint")
        try:
            tensors = safetensors.torch.load(packed)
        except Exception as error:  # safetensors raises many types
            raise ValueError(f"{TENSORS} cannot be read: {error}") from error
        # Cloned into aligned memory: kernels may sum unaligned tensors in another order.
        return step, unpack({name: tensor.clone() for name, tensor in tensors.items()}, document)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path} is not a valid checkpoint: {error_message(error)}") from error


def _load_each(found: list[tuple[int, Path]], warn: Warn) -> Iterator[tuple[int, Any]]:
    for step, path in found:
        try:
            saved_step, state = _load(path)
            if saved_step != step:
                raise CheckpointError(f"{path} is not a valid checkpoint: its manifest belongs to another step")
        except CheckpointError as error:
            warn(str(error))
        else:
            yield step, state


def _list(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints, valid or not, newest first. A replaced one (`.old`) comes after its replacement."""
    try:
        matches = [(re.fullmatch(r"step-(\d{6}|[1-9]\d{6,})(\.old)?", p.name, re.ASCII), p) for p in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be searched for checkpoints: {error_message(error)}") from error
    return sorted(((int(match[1]), path) for match, path in matches if match), key=lambda item: (-item[0], item[1]))


def _best_steps(folder: Path) -> list[int]:
    """Return the steps of the best checkpoint and of the previous best, which is used if the first is missing."""
    try:
        match parse(BEST, read(folder / BEST)):
            case {"format": "maxup-checkpoint", "version": 1, "step": int(step), "before": int() | None as before}:
                return [step] if before is None else [step, before]
        raise ValueError(f"{BEST} names no step")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the best checkpoint in {folder} is unknown: {error_message(error)}") from error


def _existing_best(folder: Path) -> int | None:
    existing = {step for step, _ in _list(folder)}
    return next((step for step in _best_steps(folder) if step in existing), None)


def _mark_best(folder: Path, step: int) -> None:
    """Write best.json before the checkpoint is in place. If the process dies in between, the previous best is used."""
    before = None
    with suppress(CheckpointError):
        before = _existing_best(folder)
    atomic_io.replace(folder / BEST, dump(HEAD | {"step": step, "before": before}))


def _prune(folder: Path, step: int, keep: int) -> None:
    """Rename old checkpoints before `remove_leftovers` deletes them, so that no partly deleted one is ever loaded."""
    with suppress(CheckpointError, OSError):  # if the best is unknown, keep all
        found = _list(folder)
        stay = {*sorted({s for s, _ in found if s <= step})[-keep:], _existing_best(folder)}
        for s, path in found:
            if (s <= step and s not in stay) or (path.suffix == ".old" and os.path.lexists(path.with_suffix(""))):
                path.rename(temporary(path))

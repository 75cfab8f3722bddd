"""Certifying a data set: image by image into a TSV, resumable, shared by several processes."""

import glob
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from maxup.cuda import fused
from maxup.errors import CertificateError, CheckpointError
from maxup.lab.certify import tsv as table
from maxup.lab.certify.target import Target, answers, digest
from maxup.lab.certify.tsv import Row
from maxup.lab.environment import environment
from maxup.lab.storage.atomic_io import sweep
from maxup.lab.storage.locks import locked
from maxup.smoothing.smooth import DTYPES, TOGETHER, Smooth, check_radii, check_sampling
from maxup.validate import check_positive_int


@dataclass(frozen=True)
class Settings:
    """How to certify; the defaults are the field's."""

    sigma: float
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    batch_size: int = 2000
    dtype: str = "float32"
    """A name of DTYPES."""
    seed: int = 0
    adaptive: bool = False
    radii: tuple[float, ...] | None = None
    """With adaptive sampling: those of interest."""
    fast: bool = True
    """On a GPU, compile the network's blocks and capture its forward pass."""


def certify(
    target: Target,
    settings: Settings,
    indices: Sequence[int],
    path: Path,
    *,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Certify images of a subject into a TSV, going on with what is there; returns the rows of these images.

    Under torchrun every process takes its share and writes a file of its own, which the first one gathers at the end.

    Args:
        target: The network and its images.
        settings: How.
        indices: Which images.
        path: The TSV.
        say: Gets a line now and then.
    """
    check_sampling(n0=settings.n0, n=settings.n, alpha=settings.alpha)  # before there is a file
    check_radii(settings.radii)
    check_positive_int("batch_size", settings.batch_size)
    device = find_device()
    about = describe(target, settings, device)
    smooth = make_smooth(target, settings, device)
    labels = target.images.y.tolist()
    with _processes() as (rank, world, wait), ExitStack() as held:
        refused: Exception | None = None
        if rank == 0:
            try:
                held.enter_context(locked(path.resolve().parent, path.resolve().name))
                # Files that a killed process was about to rename: the table and its .rank-N parts.
                sweep(path.resolve().parent, f"{glob.escape(path.resolve().name)}*")
                before = table.gather(path, about, labels)  # what an earlier run left, or its complaint
                table.expect(path, len({*indices} | {row.idx for row in before}))
            except (CertificateError, CheckpointError, OSError) as error:
                refused = error
        if _in_first(refused is not None, world):
            raise refused or SystemExit(1)  # the first process says why
        done = {row.idx for row in _rows(path)}
        about["asked"] = len(done.union(indices))
        todo = [i for i in indices if i not in done]
        mine = todo[rank::world]
        own = path if world == 1 else path.with_name(f"{path.name}.rank-{rank}")
        begun, told = time.monotonic(), time.monotonic()
        for start in range(0, len(mine), TOGETHER):
            part = mine[start : start + TOGETHER]
            found = smooth.certify_many(
                target.pixels(part), settings.n0, settings.n, settings.alpha, settings.batch_size, indices=part,
                adaptive=settings.adaptive, radii=settings.radii,
            )  # fmt: skip
            new = [Row.of(i, labels[i], c) for i, c in zip(part, found, strict=True)]
            if start == 0:
                table.begin(own, about, labels)  # not before there are rows
            table.append(own, new, samples=settings.adaptive)
            if rank == 0 and (time.monotonic() - told > 10 or start + TOGETHER >= len(mine)):
                told, ready = time.monotonic(), start + len(part)
                left = timedelta(seconds=round((told - begun) / ready * (len(mine) - ready)))
                say(f"{ready}/{len(mine)} images{' of this process' if world > 1 else ''}, {left} left")
        wait()
        if rank == 0:
            table.gather(path, about, labels)
        wait()
        wanted = set(indices)
        return [row for row in _rows(path) if row.idx in wanted]


def _in_first(yes: bool, world: int) -> bool:
    """Whether something is so in the first process, for all to know."""
    if world == 1:
        return yes
    from torch import distributed

    said = [yes]
    distributed.broadcast_object_list(said)
    return said[0]


def _rows(path: Path) -> list[Row]:
    return table.read(path)[1] if path.exists() else []


def make_smooth(target: Target, settings: Settings, device: torch.device) -> Smooth:
    """The smoothed classifier that certifies and predicts: one function, in one precision."""
    smooth = Smooth(
        target.model, len(target.images.classes), settings.sigma, dtype=DTYPES[settings.dtype], seed=settings.seed,
        capture=settings.fast,
    )  # fmt: skip
    target.model.to(device)
    if device.type == "cuda":
        target.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
        if settings.fast:
            from maxup.cuda.compile import compile_blocks

            compile_blocks(target.model)
    return smooth


def describe(target: Target, settings: Settings, device: torch.device) -> dict[str, Any]:
    """What the TSV's first line says, of a network that is not compiled yet."""
    network, images = digest(target.model, target.images)
    probe = answers(target.model, target.images, device, DTYPES[settings.dtype])
    blocks = device.type == "cuda" and settings.dtype == "bfloat16" and _fused(target, device)
    fast = settings.fast and device.type == "cuda"
    tf32 = device.type == "cuda" and settings.dtype == "float32" and torch.backends.cudnn.allow_tf32
    return {
        "subject": target.name,
        "model": network,
        "answers": probe,
        "images": images,
        "sigma": settings.sigma,
        "n0": settings.n0,
        "n": settings.n,
        "alpha": settings.alpha,
        "dtype": settings.dtype + (", convolutions in tf32" if tf32 else ""),
        "forward": ("compiled and captured" if fast else "eager") + (", fused blocks" if blocks else ""),
        "sampling": "adaptive" if settings.adaptive else "fixed",
        "radii": list(settings.radii) if settings.radii is not None else None,
        "seed": settings.seed,
        "classes": list(target.images.classes),
        "environment": environment(),
    }


@torch.no_grad()
def _fused(target: Target, device: torch.device) -> bool:
    """Whether the network's blocks run in the kernel of `maxup.cuda.fused`, which rounds less often than layers."""
    before = fused.launches
    with torch.random.fork_rng([device]), torch.autocast(device.type, torch.bfloat16):
        target.model(target.pixels([0]).to(device))
    return fused.launches > before


def find_device() -> torch.device:
    """This process's GPU, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """This process's number, how many there are, and how to wait for all: torchrun's, or one alone."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield 0, 1, lambda: None
        return
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(days=7))  # shares may take very different times
    try:
        yield distributed.get_rank(), world, distributed.barrier
    finally:
        distributed.destroy_process_group()

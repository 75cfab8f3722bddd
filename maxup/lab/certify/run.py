"""Certify a data set into a TSV. The work can be resumed, and split over several processes."""

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
from maxup.lab.certify import tsv
from maxup.lab.certify.target import Target, digest, probe_logits
from maxup.lab.certify.tsv import Row
from maxup.lab.environment import environment
from maxup.lab.storage.atomic_io import remove_leftovers
from maxup.lab.storage.locks import locked
from maxup.smoothing.smooth import DTYPES, TOGETHER, Smooth, check_radii, check_sampling
from maxup.validate import check_positive_int


@dataclass(frozen=True)
class Settings:
    """Settings of certification. n0, n and alpha default to the values of Cohen et al. (2019)."""

    sigma: float
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    batch_size: int = 2000
    dtype: str = "float32"
    """A key of `DTYPES`."""
    seed: int = 0
    adaptive: bool = False
    radii: tuple[float, ...] | None = None
    """With adaptive sampling: stop as soon as these radii are decided."""
    fast: bool = True
    """On a GPU: compile the network's blocks and capture its forward pass as a CUDA graph."""


def certify(
    target: Target,
    settings: Settings,
    indices: Sequence[int],
    path: Path,
    *,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Certify images and write one row per image to a TSV. Images that the TSV already has are skipped.

    Under torchrun every process certifies a part of the images and writes its own file. Rank 0 merges these files at
    the end.

    Args:
        target: The network and its images.
        settings: How to certify.
        indices: Indices of the images.
        path: The TSV, in a folder that all processes share.
        say: Called with a progress line about every 10 seconds.

    Returns:
        The rows of these images.
    """
    check_sampling(n0=settings.n0, n=settings.n, alpha=settings.alpha)  # before any file is written
    check_radii(settings.radii)
    check_positive_int("batch_size", settings.batch_size)
    device = find_device()
    header = describe(target, settings, device)
    smooth = make_smooth(target, settings, device)
    labels = target.images.y.tolist()
    with _processes() as (rank, world, wait), ExitStack() as stack:
        failure: Exception | None = None
        if rank == 0:
            try:
                stack.enter_context(locked(path.resolve().parent, path.resolve().name))
                # Temporary files of killed processes, for the TSV and its .rank-N parts.
                remove_leftovers(path.resolve().parent, f"{glob.escape(path.resolve().name)}*")
                before = tsv.gather(path, header, labels)  # rows of an earlier call
                tsv.set_num_images(path, len({*indices} | {row.idx for row in before}))
            except (CertificateError, CheckpointError, OSError) as error:
                failure = error
        if _from_rank_0(failure is not None, world):
            raise failure or SystemExit(1)  # rank 0 prints the message
        done = {row.idx for row in _rows(path)}
        header["asked"] = len(done.union(indices))
        todo = [i for i in indices if i not in done]
        mine = todo[rank::world]
        file = path if world == 1 else path.with_name(f"{path.name}.rank-{rank}")
        started = printed = time.monotonic()
        for start in range(0, len(mine), TOGETHER):
            part = mine[start : start + TOGETHER]
            certificates = smooth.certify_many(
                target.pixels(part), settings.n0, settings.n, settings.alpha, settings.batch_size, indices=part,
                adaptive=settings.adaptive, radii=settings.radii,
            )  # fmt: skip
            new = [Row.from_certificate(i, labels[i], c) for i, c in zip(part, certificates, strict=True)]
            if start == 0:
                tsv.begin(file, header, labels)  # only once there are rows
            tsv.append(file, new, samples=settings.adaptive)
            if rank == 0 and (time.monotonic() - printed > 10 or start + TOGETHER >= len(mine)):
                printed, ready = time.monotonic(), start + len(part)
                left = timedelta(seconds=round((printed - started) / ready * (len(mine) - ready)))
                say(f"{ready}/{len(mine)} images{' of this process' if world > 1 else ''}, {left} left")
        wait()
        if rank == 0 and (lost := set(indices) - {row.idx for row in tsv.gather(path, header, labels)}):
            failure = CertificateError(
                f"{path} lacks {len(lost)} images that other processes certified; use a folder that all machines "
                "share, and run the same command again"
            )
        if _from_rank_0(failure is not None, world):
            raise failure or SystemExit(1)
        requested = set(indices)
        return [row for row in _rows(path) if row.idx in requested]


def _from_rank_0(value: bool, world: int) -> bool:
    if world == 1:
        return value
    from torch import distributed

    values = [value]
    distributed.broadcast_object_list(values)
    return values[0]


def _rows(path: Path) -> list[Row]:
    return tsv.read(path)[1] if path.exists() else []


def make_smooth(target: Target, settings: Settings, device: torch.device) -> Smooth:
    """Build the smoothed classifier that certifies and predicts, on a device and in one precision."""
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
    """Return the header of the TSV. Call this before the network is compiled."""
    network, images = digest(target.model, target.images)
    probe = probe_logits(target.model, target.images, device, DTYPES[settings.dtype])
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
    """Whether the network's blocks run in the kernel of `maxup.cuda.fused`, which rounds less often."""
    before = fused.launches
    with torch.random.fork_rng([device]), torch.autocast(device.type, torch.bfloat16):
        target.model(target.pixels([0]).to(device))
    return fused.launches > before


def find_device() -> torch.device:
    """Return the GPU of this process, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Yield the rank, the number of processes and a barrier: torchrun's, or those of a single process."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield 0, 1, lambda: None
        return
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(days=7))  # parts may take very different times
    try:
        yield distributed.get_rank(), world, distributed.barrier
    finally:
        distributed.destroy_process_group()

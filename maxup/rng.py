"""Seeds and random states. Only this module hashes seeds."""

import ctypes
import hashlib
import itertools
import os
import pickle
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch import Generator

MT19937_BYTES = 625 * 4  # size of the state of numpy's default generator in memory: 624 words and a position
_seeds: "weakref.WeakKeyDictionary[object, int]" = weakref.WeakKeyDictionary()  # of live objectives


def hash_seed(*parts: object) -> int:
    """Return a seed that depends on all parts and is the same on every machine.

    Example:
        >>> hash_seed("order", 0, 1) == hash_seed("order", 0, 1), hash_seed("order", 0, 1) == hash_seed("order", 0, 2)
        (True, False)
    """
    digest = hashlib.sha256(" ".join(map(str, ("maxup", *parts))).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def make_generator(*parts: object) -> Generator:
    """Return a CPU generator seeded with `hash_seed(*parts)`.

    Example:
        >>> make_generator("order", 0, 1).initial_seed() == hash_seed("order", 0, 1)
        True
    """
    return Generator().manual_seed(hash_seed(*parts))


def objective_seed(owner: object) -> int:
    """Return a seed that no other live objective uses. It is the same on every rank.

    It depends on the global seed and on the smallest number that gives an unused seed. So objectives that exist at the
    same time draw differently, and a script that is run again with the same `torch.manual_seed` draws the same. The
    global random state does not advance.
    """
    used = {seed for other, seed in _seeds.items() if other is not owner}
    seeds = (hash_seed("objective", torch.initial_seed(), number) for number in itertools.count())
    return reserve_seed(owner, next(seed for seed in seeds if seed not in used))


def reserve_seed(owner: object, seed: int) -> int:
    """Return the seed after recording that this objective uses it, as when it was loaded from a checkpoint."""
    _seeds[owner] = seed
    return seed


def step_seed(seed: int, step: int) -> int:
    """Return the seed of one step of an objective in this process. It depends on the seed, the rank and the step."""
    return hash_seed("step", seed, process_rank(), step)


def process_rank() -> int:
    """Return the rank of this process: of the process group, or that its launcher has set. 0 in a single process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    try:
        return int(os.environ.get("RANK", 0))
    except ValueError:  # not a launcher's RANK
        return 0


def stream_seed(seed: int, rank: int, stream: int) -> int:
    """Return the seed of one of a run's random streams: 0 for augmentation, 1 for the copies.

    Example:
        >>> [stream_seed(seed, rank, 1) for seed, rank in ((0, 0), (0, 1), (1, 0))]
        [1, 3, 2000007]
    """
    return 2 * (seed * 1_000_003 + rank) + stream


def get_rng_state(devices: Iterable[torch.device] = ()) -> dict[str, Any]:
    """Return the global random states of torch, the given devices, Python and numpy, by name, comparable with `==`."""
    states = {"torch": torch.get_rng_state(), **{str(d): s for d, _, s in _device_states(devices)}}
    comparable = {name: bytes(state.numpy()) for name, state in states.items()}
    return comparable | {"Python": random.getstate(), "numpy": pickle.dumps(numpy.random.get_state(legacy=False))}


def remember_rng(devices: Iterable[torch.device] = ()) -> Callable[[], None]:
    """Remember the global random states, and return a function that restores them.

    Example:
        >>> restore = remember_rng()
        >>> drawn = torch.rand(3), random.random(), numpy.random.rand()
        >>> restore()
        >>> (torch.equal(drawn[0], torch.rand(3)), drawn[1] == random.random(), drawn[2] == numpy.random.rand())
        (True, True, True)
    """
    cpu, python, restore_numpy = torch.get_rng_state(), random.getstate(), _remember_numpy()
    others = _device_states(devices)
    before = get_rng_state() if _restored is not None else None

    def restore() -> None:
        if _restored is not None and get_rng_state() != before:
            _restored.append(True)
        torch.set_rng_state(cpu)
        random.setstate(python)
        restore_numpy()
        for device, module, state in others:
            module.set_rng_state(state, device)

    return restore


_restored: list[bool] | None = None


@contextmanager
def record_restored() -> Iterator[list[bool]]:
    """Yield a list that is not empty if a random state of the CPU had to be restored inside, after draws from it."""
    global _restored
    _restored = found = list[bool]()
    try:
        yield found
    finally:
        _restored = None


def _remember_numpy() -> Callable[[], None]:
    """`remember_rng` for numpy. Setting its state takes 30 microseconds, so it is set only if its memory changed."""
    state, bits = numpy.random.get_state(legacy=False), numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is not numpy.random.MT19937 or state["has_gauss"]:  # a stored normal value is outside of that memory
        return lambda: numpy.random.set_state(state)
    address = bits.ctypes.state_address
    before = ctypes.string_at(address, MT19937_BYTES)

    def restore() -> None:
        now = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
        if now is not bits or ctypes.string_at(address, MT19937_BYTES) != before:
            numpy.random.set_state(state)

    return restore


def rng_state_dict() -> dict[str, Any]:
    """Return the global random states for a checkpoint, as tensors and plain values."""
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": [kind, torch.tensor(list(map(int, keys))), *rest],
    }


def load_rng_state_dict(state: dict[str, Any]) -> None:
    """Restore what `rng_state_dict` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    kind, keys, position, *rest = state["numpy"]
    if not 0 <= position <= len(keys):  # numpy would read out of bounds
        raise ValueError(f"the numpy random state has position {position} of {len(keys)}")
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, *rest))


def _device_states(devices: Iterable[torch.device]) -> list[tuple[torch.device, Any, torch.Tensor]]:
    others = [(d, torch.get_device_module(d)) for d in devices if d.type not in ("cpu", "meta")]
    return [(d, module, module.get_rng_state(d)) for d, module in others]


@contextmanager
def seed_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators (Python, numpy, torch on the CPU and on `device`), and restore them on exit.

    Example:
        >>> with seed_globals(0):
        ...     first = random.random()
        >>> with seed_globals(0):
        ...     random.random() == first
        True
    """
    restore = remember_rng([device] if device else [])
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        with getattr(module, "device", nullcontext)(device):  # only this device, since the others are not restored
            module.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        restore()

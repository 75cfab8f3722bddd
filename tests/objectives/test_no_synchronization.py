"""After the first batch, selection runs no operation that makes the host wait for a GPU.

tests/gpu checks this with CUDA's own debug mode. Here, every operation of a step on a CPU is recorded, so that a
machine without a GPU finds a new `.item()`, boolean index or `torch.tensor` as well. `.tolist()`, `.numpy()` and
`.cpu()` are not found here.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import maxup as mu
from tests.tiny import ALL_CASES, CLASSES, B, batch, case, dropout_net, net

SYNCHRONIZING = {
    "_local_scalar_dense",  # .item(), float(), bool()
    "equal", "is_nonzero", "item",
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "lift_fresh",  # torch.tensor of Python numbers, which is copied to the device
}  # fmt: skip


class SyncRecorder(TorchDispatchMode):
    """Record the operations that would make the host wait."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [])
        )
        unknown_length = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        on_host = name == "equal" and args[0].dtype == torch.uint8  # states of random generators
        if (name in SYNCHRONIZING and not on_host) or by_mask or unknown_length:
            self.found.append(name)
        return op(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """On a CPU the values of every batch are checked, by MaxUp and by `one_hot`, because reading them is free."""
    for module in ("objectives.base", "perturb.labels"):
        monkeypatch.setattr(f"maxup.{module}.can_read_without_sync", lambda device: False)
    monkeypatch.setattr(
        "torch.nn.functional.one_hot", lambda y, n: y.new_zeros(*y.shape, n).scatter_(-1, y[..., None], 1)
    )


def synchronizing(step, before=1):
    """The operations of a step that would make the host wait, after some steps that may."""
    for _ in range(before):
        step()
    with SyncRecorder() as recorder:
        step()
    return recorder.found


def test_synchronizing_operations_are_found():
    x = torch.arange(3)
    for step in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor([1]), lambda: x.nonzero()):
        assert synchronizing(step)
    assert not synchronizing(lambda: torch.where(x > 1, x, 0).sum())


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {"transform", "transform-batched", "by-hand"}])
def test_no_perturbation_makes_the_host_wait(name):
    perturbation, model, x, y = case(name)
    objective = mu.MaxUp(perturbation, m=4)
    assert synchronizing(lambda: objective(model, x, y).backward()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_size": 2}, {"strategy": "retain"}, {"strategy": "retain", "masks": "independent"},
        {"dtype": torch.bfloat16}, {"dropout": False}, {"dropout": False, "chunk_size": 4}, {"score": "easiest"},
        {"fast": True}, {"shortlist": 2}, {"m": mu.warmup(4, steps=1)},
    ],
    ids=lambda settings: ", ".join(settings),
)  # fmt: skip
@pytest.mark.parametrize("build", [net, dropout_net])
def test_no_setting_makes_the_host_wait(settings, build):
    (x, y), model = batch(dtype=torch.float32), build(dtype=torch.float32)
    objective = mu.MaxUp(mu.Cutout(4), **{"m": 4} | settings)
    before = 2 if callable(objective.m) else 1
    assert synchronizing(lambda: objective(model, x, y).backward(), before) == []


def test_select_with_mixed_labels_does_not_make_the_host_wait():
    (x, y), model = batch(), net()
    objective = mu.MaxUp(mu.CutMix(CLASSES), m=4, score="kl")
    assert synchronizing(lambda: objective.select(model, x, y)) == []


@pytest.mark.parametrize("objective", [mu.Average(mu.Cutout(4), m=4), mu.Adversarial(0.1), mu.HardExamples(0.5)])
def test_no_other_objective_makes_the_host_wait(objective):
    (x, y), model = batch(b=B), net()
    assert synchronizing(lambda: objective(model, x, y).backward()) == []

import hashlib
import json
import multiprocessing
import os
import random
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from maxup.lab.storage.checkpoint import best, latest, load, save
from tests.lab.storage.test_state_io import same

processes = multiprocessing.get_context("forkserver")  # real processes, which need not import all of this again
processes.set_forkserver_preload(
    ["tests.lab.storage.test_checkpoint_failures", "torch._dynamo"]
)  # an optimizer imports it
FILES = ["tensors.safetensors", "state.json", "manifest.json"]


def refuse(message):
    raise AssertionError(message)


def state_of(step):
    g = torch.Generator().manual_seed(step)
    return {"step": step, "w": torch.randn(40, 50, generator=g), "random": random.Random(step).getstate(), "lr": 0.1}


def steps(folder):
    return sorted({int(p.stem[5:]) for p in Path(folder).glob("step-*")})


def temporary(folder):
    return list(Path(folder).glob(".tmp-*"))


def test_there_and_back(tmp_path):
    path = save(tmp_path / "a" / "run", 123, state_of(123))
    assert path == tmp_path / "a" / "run" / "step-000123"
    assert same(load(path), state_of(123))
    assert same(load(str(path)), state_of(123))
    assert latest(path.parent, refuse)[0] == 123
    assert sorted(p.name for p in path.iterdir()) == sorted(FILES)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("maxup-checkpoint", 1, 123)
    for name in FILES[:2]:
        data = (path / name).read_bytes()
        assert manifest["files"][name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert set(safetensors.torch.load_file(path / FILES[0])) == {"w"}  # any other program reads it


def test_steps_of_many_digits(tmp_path):
    for step in (0, 999_999, 1_000_000, 10**12):
        save(tmp_path, step, state_of(step), keep=9)
    assert latest(tmp_path, refuse)[0] == 10**12
    assert steps(tmp_path) == [0, 999_999, 1_000_000, 10**12]


def test_bad_arguments_write_nothing(tmp_path):
    for step in (-1, 1.0, True, "1"):
        with pytest.raises(ValueError, match="whole number"):
            save(tmp_path, step, {})
    with pytest.raises(ValueError, match="keep"):
        save(tmp_path, 1, {}, keep=0)
    with pytest.raises(TypeError, match="cannot be saved"):
        save(tmp_path, 1, {"a": object()})
    assert not list(tmp_path.iterdir())


OPTIMISERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, t0=3),
}


class Training:
    """A net, an optimizer, a schedule and a random stream."""

    def __init__(self, optimizer):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4, bias=False))
        self.optimizer = OPTIMISERS[optimizer](self.net.parameters())
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.generator = torch.Generator().manual_seed(1)

    def train(self, steps):
        for _ in range(steps):
            x = torch.randn(16, 8, generator=self.generator)
            y = torch.randint(4, (16,), generator=self.generator)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            self.schedule.step()

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("net", "optimizer", "schedule")}
        return parts | {"generator": self.generator.get_state()}

    def resume(self, state):
        for name in ("net", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"])


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_training_resumes_to_the_last_bit(optimizer, tmp_path):
    straight, resumed = Training(optimizer), Training(optimizer)
    straight.train(5)
    save(tmp_path, 5, straight.state())
    straight.train(20)
    resumed.train(1)  # whatever it was
    resumed.resume(latest(tmp_path, refuse)[1])
    resumed.train(20)
    assert same(resumed.state(), straight.state())


def test_the_newest_and_the_best_stay(tmp_path):
    for step in range(1, 10):
        save(tmp_path, step, state_of(step), best=step in (2, 3))
        assert latest(tmp_path, refuse)[0] == step
    assert steps(tmp_path) == [3, 8, 9]
    assert same(best(tmp_path, refuse), (3, state_of(3)))
    save(tmp_path, 10, state_of(10), keep=1, best=True)
    assert steps(tmp_path) == [10]
    assert best(tmp_path, refuse)[0] == 10
    assert not temporary(tmp_path)


def test_without_a_best(tmp_path):
    assert best(tmp_path, refuse) is None
    save(tmp_path, 1, {})
    assert best(tmp_path, refuse) is None
    assert latest(tmp_path / "none", refuse) is None


def test_the_best_is_gone_or_damaged(tmp_path):
    warnings = []
    shutil.rmtree(save(tmp_path, 1, {}, best=True))
    assert best(tmp_path, warnings.append) is None
    assert "the best checkpoint is step 1, according to" in warnings.pop()
    save(tmp_path, 2, {}, best=True)
    (tmp_path / "step-000002" / "state.json").unlink()
    assert best(tmp_path, warnings.append) is None
    assert "state.json" in warnings.pop()
    for text in ("", "[]", "[" * 10_000, '{"step": 1}', "\x80", "1" * 70_000):
        (tmp_path / "best.json").write_text(text)
        assert best(tmp_path, warnings.append) is None
        assert "is unknown" in warnings.pop()
    for step in (3, 4, 5, 6):  # one of them may be the best: which, is unknown
        save(tmp_path, step, {})
    assert steps(tmp_path) == [2, 3, 4, 5, 6]
    save(tmp_path, 7, {}, best=True)
    assert steps(tmp_path) == [6, 7]


def test_the_best_before_counts_until_the_new_one_is_there(tmp_path):
    save(tmp_path, 1, state_of(1), best=True)
    shutil.rmtree(save(tmp_path, 5, state_of(5), keep=9, best=True))  # as if killed before the rename
    assert best(tmp_path, refuse)[0] == 1
    for step in (2, 3, 4):
        save(tmp_path, step, state_of(step))
    assert steps(tmp_path) == [1, 3, 4]


def test_a_future_left_behind_is_not_counted(tmp_path):
    save(tmp_path, 20, {})
    (tmp_path / "step-000020" / "state.json").write_text("{")
    for step in (11, 12):
        save(tmp_path, step, {"step": step}, keep=1)
    assert steps(tmp_path) == [12, 20]
    warnings = []
    assert latest(tmp_path, warnings.append) == (12, {"step": 12})
    assert len(warnings) == 1
    save(tmp_path, 20, {"step": 20}, keep=1)
    assert latest(tmp_path, refuse) == (20, {"step": 20})
    assert steps(tmp_path) == [20]


def test_saving_the_same_step_again(tmp_path):
    save(tmp_path, 1, {"try": 1}, best=True)
    save(tmp_path, 1, {"try": 2})
    assert load(tmp_path / "step-000001") == {"try": 2}
    assert best(tmp_path, refuse) == latest(tmp_path, refuse) == (1, {"try": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "step-000001"]
    (tmp_path / "step-000002").write_text("a file")
    save(tmp_path, 2, {})
    (tmp_path / "step-000003").symlink_to(tmp_path / "step-000001")
    save(tmp_path, 3, {})
    assert latest(tmp_path, refuse) == (3, {})
    assert load(tmp_path / "step-000001") == {"try": 2}


def test_what_was_to_be_replaced_is_found(tmp_path):
    """Killed between two renames, the checkpoint of a step is there under its other name."""
    for step in (1, 2):
        save(tmp_path, step, state_of(step), best=True)
    os.rename(tmp_path / "step-000002", tmp_path / "step-000002.old")
    assert same(latest(tmp_path, refuse), (2, state_of(2)))
    assert same(best(tmp_path, refuse), (2, state_of(2)))
    save(tmp_path, 3, state_of(3))
    assert (tmp_path / "step-000002.old").exists()
    save(tmp_path, 2, state_of(2))
    assert not (tmp_path / "step-000002.old").exists()


def test_the_names_of_a_run_are_on_the_disk_after_the_first_save(tmp_path, monkeypatch):
    """Of every folder made for it, and of the run's folder, where metrics.jsonl lies."""
    synced, fsync = set(), os.fsync

    def recorded(file):
        synced.add(Path(os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    monkeypatch.setattr(os, "fsync", recorded)
    folder = tmp_path / "runs" / "seed-0" / "checkpoints"
    save(folder, 1, {})
    assert {tmp_path, tmp_path / "runs", tmp_path / "runs" / "seed-0", folder} <= synced
    synced.clear()
    save(folder, 2, {})  # a kill may have come before the first one's syncs
    assert {tmp_path / "runs" / "seed-0", folder} <= synced

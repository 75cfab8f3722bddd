import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image

from maxup.errors import DataError
from maxup.lab.data.decode import random_box
from maxup.lab.data.folder import Folder, scan
from maxup.lab.data.workers import _catch_dead_workers
from tests.lab.data.fake import cut_short, write_folders
from tests.lab.data.test_loader import loader as device_loader
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return replace(scan(write_folders(tmp_path_factory.mktemp("folders")) / "train"), size=16, workers=0)


@pytest.fixture
def damaged(tmp_path):
    """Twelve images, of which 1 is truncated and 5 is empty."""
    found = replace(scan(write_folders(tmp_path) / "train"), size=16, workers=0)
    cut_short(found.path(1))
    found.path(5).write_bytes(b"")
    return found


def batches(folder, *, training=True, epochs=1, batch_size=5, seed=0, **options):
    part = folder.loader(batch_size, device="cpu", training=training, seed=seed, **options)
    return [batch for _ in range(epochs) for batch in part]


def same(some, others):
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_a_training_image_equals_a_simple_reference(folder):
    """Its box comes from a random stream that depends only on (seed, epoch, index)."""
    for epoch, batch in enumerate([batches(folder, epochs=2, seed=7)[i] for i in (0, 3)]):
        for index, x, y in zip(*batch, strict=True):
            digest = hashlib.sha256(f"maxup crop 7 {epoch} {index}".encode()).digest()
            stream = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            image = Image.open(folder.path(int(index))).convert("RGB")
            box = random_box(*image.size, stream)
            expected = np.array(image.crop(box).resize((16, 16), Image.Resampling.BILINEAR))
            assert x.dtype == torch.uint8
            assert np.array_equal(x.permute(1, 2, 0).numpy(), expected)
            assert y == folder.y[index]


def test_the_order_is_the_same_in_every_loader(folder):
    ours = [rows.tolist() for rows, _, _ in batches(folder, epochs=2, batch_size=3)]
    other = device_loader(12, 3)
    assert ours == [rows.tolist() for _ in range(2) for rows, _, _ in other]
    assert [rows.tolist() for rows, _, _ in batches(folder, training=False)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]


def test_the_number_of_workers_changes_nothing(folder, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(3))  # whatever this machine has
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    alone = batches(folder, epochs=2)
    for workers in (1, 3):
        assert same(batches(replace(folder, workers=workers), epochs=2), alone)


def test_global_random_streams_are_unchanged(folder):
    before = torch.get_rng_state()
    batches(replace(folder, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_the_middle_of_an_epoch_gives_the_same_batches(folder, workers):
    folder = replace(folder, workers=workers)
    expected = batches(folder, epochs=2)
    first = folder.loader(5, device="cpu", training=True, seed=0)
    for _ in first:
        break
    second = folder.loader(5, device="cpu", training=True, seed=0)
    second.load_state_dict(first.state_dict())
    assert same([batch for _ in range(2) for batch in second], expected[1:])


def test_two_ranks_are_one_process_with_the_joined_batch(folder):
    one = batches(folder, batch_size=6)
    two = [batches(folder, batch_size=3, rank=r, world_size=2) for r in range(2)]
    for (rows, x, _), (a, xa, _), (b, xb, _) in zip(one, *two, strict=True):
        joined = {int(i): image for i, image in zip(torch.cat([a, b]), torch.cat([xa, xb]), strict=True)}
        assert sorted(joined) == sorted(rows.tolist())
        assert all(torch.equal(joined[int(i)], image) for i, image in zip(rows, x, strict=True))
    parts = [batches(folder, training=False, rank=r, world_size=2) for r in range(2)]
    assert sorted(i for part in parts for rows, _, _ in part for i in rows.tolist()) == list(range(12))


@pytest.mark.parametrize("workers", [0, 2])
def test_in_training_the_next_readable_image_replaces_an_unreadable_one(damaged, workers):
    part = replace(damaged, workers=workers).loader(4, device="cpu", training=True, seed=3)
    order = [rows.tolist() for rows, _, _ in device_loader(12, 4, seed=3)]
    for (rows, x, y), indices in zip(part, order, strict=True):
        following = indices + indices
        expected = [next(i for i in following[k:] if i not in (1, 5)) for k in range(4)]
        assert rows.tolist() == expected
        assert torch.equal(y, damaged.y[rows])
        assert len(x) == 4
        assert all(torch.equal(x[a], x[b]) for a in range(4) for b in range(4) if rows[a] == rows[b])
    assert part.unreadable == {1, 5}
    again = damaged.loader(4, device="cpu", training=True, seed=3)
    again.load_state_dict(part.state_dict())
    assert again.unreadable == {1, 5}


def test_in_evaluation_unreadable_images_are_left_out(damaged):
    part = damaged.loader(5, device="cpu", training=False, seed=0)
    assert [rows.tolist() for rows, _, _ in part] == [[0, 2, 3, 4], [6, 7, 8, 9], [10, 11]]
    assert part.unreadable == {1, 5}


def test_a_batch_without_a_readable_image_is_an_error_in_training(damaged):
    bad = damaged.subset([1, 5])
    message = r"none of the 2 images of a batch can be read, for example .*/\d\.jpeg: cannot identify image file$"
    with pytest.raises(DataError, match=message):
        batches(bad)
    assert batches(bad, training=False) == []


def test_evaluation_may_be_larger(folder):
    _, x, _ = batches(replace(folder, test_size=24), training=False)[0]
    assert x.shape == (5, 3, 24, 24)
    assert batches(folder, training=False)[0][1].shape == (5, 3, 16, 16)


@pytest.mark.parametrize("unreadable", [None, 3, [12], [-1], [True], ["1"], [[1]]], ids=repr)
def test_invalid_states_are_an_error(folder, unreadable):
    part = folder.loader(4, device="cpu", training=True, seed=0)
    for state in ({"epoch": 0, "position": 1, "unreadable": unreadable}, {"epoch": 0, "position": 1}):
        with pytest.raises(DataError, match="is invalid in the state of a loader"):
            part.load_state_dict(state)
    assert part.state_dict() == {"epoch": 0, "position": 0, "unreadable": []}


def test_workers_end_with_a_killed_process(folder):
    """They share its stdout: a reader would wait as long as one of them lives."""
    script = f"""
import sys, time
from dataclasses import replace
from pathlib import Path
from maxup.lab.data.folder import scan

batches = iter(replace(scan(Path({str(folder.path(0).parents[1])!r})), size=16, workers=2).loader(
    5, device="cpu", training=True, seed=0))
next(batches)
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.communicate(timeout=PATIENCE) == ("", None)


class Deadly(Folder):
    """Kills the process that asks for image 8, as the system does if memory is short."""

    def path(self, index):
        if index == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().path(index)


def test_a_killed_worker_is_an_error(folder):
    deadly = Deadly(**{field.name: getattr(folder, field.name) for field in fields(folder)} | {"workers": 1})
    advice = r'has no if __name__ == "__main__" around maxup\.train; use fewer data\.workers or 0, or add it'
    with pytest.raises(DataError, match=rf"^a worker process that reads the data died \(.*{advice}"):
        list(deadly.loader(1, device="cpu", training=False, seed=0))


def test_a_bug_in_a_worker_keeps_its_error():
    def raising():
        yield 1
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0. Original Traceback")

    with pytest.raises(RuntimeError, match="Caught RuntimeError"):
        list(_catch_dead_workers(raising()))


def test_workers_import_nothing_from_the_current_folder(tmp_path):
    """The command does not import from the current folder, so its workers must not either."""
    data, here, script = write_folders(tmp_path / "data"), tmp_path / "here", tmp_path / "program" / "program.py"
    here.mkdir()
    script.parent.mkdir()
    for name in ("socket", "selectors", "yaml", "random", "tempfile", "numpy"):
        (here / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    script.write_text(
        "import os, sys\n"
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "from maxup.lab.data.folder import scan\n"
        "if __name__ == '__main__':\n"
        "    folder = replace(scan(Path(sys.argv[1], 'train')), size=16, workers=1)\n"
        "    print(sum(len(y) for _, _, y in folder.loader(5, device='cpu', training=False, seed=0)))\n"
        "    print(os.environ.get('PYTHONSAFEPATH'))\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": os.path.abspath("")}
    done = subprocess.run([sys.executable, script, data], cwd=here, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("12\nNone\n", "")  # and PYTHONSAFEPATH is restored
    assert not list(here.glob("ran-*"))

"""Checkpoints that are whole and wrong: a folder mutated at will, through the command."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from maxup.cli.main import main
from maxup.lab.storage import checkpoint
from tests.lab.storage.test_checkpoint_hostile import forge, mutate
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
RECIPE = """
base: digits/mlp-gaussian-maxup
data: {train_size: 60}
model: {args: {hidden: [4]}}
objective: {name: maxup, m: 2, warmup: 0}
optim: {ema: 0.9}
epochs: 3
batch_size: 20
"""
ODD = [None, True, -1, 0, 1, 7, 10**30, 1.5, "", "x", [], {}, [[1, 2]], {"float": "nan"}, {"tensor": "model/0.weight"}]
ODD += [{"dict": []}, {"tuple": [1]}]
FREE = ("optimizer/state", "ranks", "best", "last", "seconds", "training_seconds", "metrics_size", "recorded")


def arguments(folder):
    return ["train", str(folder / "recipe.yaml"), "--out", str(folder / "run"), "--trackers", "none"]


def trained(folder):
    """The weights of the last checkpoint, which a run that ended well has put in place."""
    found = checkpoint.load(folder / "run" / "checkpoints" / "step-000009")
    return found["model"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run interrupted at step 8 of 9, with the checkpoint of step 3 before it; and the weights it would end with."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "recipe.yaml").write_text(RECIPE)
    assert main([*arguments(folder), "--save_every", "0"]) == 0
    found = trained(folder)
    shutil.rmtree(folder / "run" / "checkpoints" / "step-000009")
    (folder / "run" / "run.json").unlink()
    assert sorted(p.name for p in (folder / "run" / "checkpoints").glob("step-*"))[-1] == "step-000008"
    return folder, found


def change_document(path, chance):
    """Put something odd anywhere in the state, with a manifest to match; where, as a path of keys."""
    document = json.loads((path / "state.json").read_text())
    node, where = document, []
    while True:
        if isinstance(node, dict) and set(node) == {"dict"}:
            inner = node["dict"]
        elif isinstance(node, dict) and set(node) == {"ordered"}:
            inner = node["ordered"][0]
        elif isinstance(node, dict) and set(node) == {"tuple"}:
            inner = node["tuple"]
        else:
            inner = node if isinstance(node, list) else None
        if not inner:
            break
        at = chance.randrange(len(inner))
        pair = isinstance(inner[at], list) and len(inner[at]) == 2 and isinstance(inner[at][0], str | int)
        where.append(str(inner[at][0] if pair else at))
        child = inner[at][1] if pair else inner[at]
        if chance.random() < 0.4 or not isinstance(child, dict | list):
            kind = chance.randrange(3)
            if kind == 0:
                del inner[at]
            elif pair:
                inner[at][kind - 1 if kind == 2 and chance.random() < 0.2 else 1] = chance.choice(ODD)
            else:
                inner[at] = chance.choice(ODD)
            break
        node = child
    (path / "state.json").write_text(json.dumps(document))
    forge(path)
    return "/".join(where)


def change_tensor(path, chance):
    """Give a tensor another shape, type or value, with a manifest to match."""
    tensors = safetensors.torch.load((path / "tensors.safetensors").read_bytes())
    name = chance.choice(sorted(tensors))
    changes = [
        lambda t: t[None].contiguous(), lambda t: t.flatten()[:-1].clone(), lambda t: t.double(), lambda t: t.bool(),
        lambda t: torch.full_like(t, float("nan") if t.is_floating_point() else 255), lambda t: torch.zeros(0),
    ]  # fmt: skip
    tensors[name] = chance.choice(changes)(tensors[name])
    (path / "tensors.safetensors").write_bytes(safetensors.torch.save(tensors))
    forge(path)
    return f"tensor {name}"


def change_files(run, path, chance):
    """Damage files and folders, with nothing to match."""
    file = chance.choice(sorted(p for p in (run / "checkpoints").rglob("*") if p.is_file()))
    other = chance.choice(sorted(p for p in run.rglob("*") if p.is_file()))
    kind = chance.randrange(9)
    if kind < 3:
        file.write_bytes(mutate(file.read_bytes(), chance))
    elif kind == 3:
        file.unlink()
    elif kind == 4:
        file.write_bytes(other.read_bytes())
    elif kind == 5:
        file.rename(file.with_name(chance.choice(["x", ".tmp-1-x", "state.json.old", "manifest.json"])))
    elif kind == 6:
        file.unlink()
        file.symlink_to(chance.choice([other, file, run, Path("/dev/zero")]))
    elif kind == 7:
        file.unlink()
        chance.choice([file.mkdir, lambda: os.mkfifo(file)])()
    else:
        chance.choice(
            [
                lambda: (run / "checkpoints" / "step-000009").mkdir(),
                lambda: (run / "checkpoints" / "step-000009").symlink_to(path),
                lambda: (run / "checkpoints" / "step-000009").write_text("x"),
                lambda: path.rename(path.with_name("step-000004")),
                lambda: path.rename(path.with_name("step-1000009")),
                lambda: shutil.copytree(path, path.with_name("step-000008.old")),
                lambda: shutil.rmtree(path),
                lambda: shutil.rmtree(run / "checkpoints"),
                lambda: (run / "metrics.jsonl").write_text("{"),
                lambda: (run / "metrics.jsonl").unlink(),
                lambda: (run / "checkpoints" / "extra").write_bytes(b"\0" * 9),
            ]
        )()
    return f"files {kind} {file.name}"


def may_differ(what):
    """Whether a change may end in another run: one that says other numbers of the right kind, signed for."""
    return what.startswith(("tensor", *FREE))


def one(seed, whole, folder, run_it):
    """One mutation, and what comes of it."""
    chance = random.Random(seed)
    shutil.copytree(whole[0], folder, symlinks=True)
    run = folder / "run"
    path = run / "checkpoints" / "step-000008"
    kind = chance.randrange(3)
    what = [lambda: change_document(path, chance), lambda: change_tensor(path, chance),
            lambda: change_files(run, path, chance)][kind]()  # fmt: skip
    code, out, err = run_it(arguments(folder))
    about = (seed, what, code, out, err)
    assert "Traceback" not in out + err, about
    if code == 0:
        assert may_differ(what) or all(torch.equal(t, trained(folder)[k]) for k, t in whole[1].items()), about
        assert not err, about
    else:
        assert code == 1, about
        assert len(err.splitlines()) == 1, about
        assert err.startswith("maxup train: "), about
    shutil.rmtree(folder)
    return code


def mutations(seeds, whole, tmp_path, capsys):
    def run_it(arguments):
        code = main(arguments)
        return code, *capsys.readouterr()

    capsys.readouterr()
    codes = [one(seed, whole, tmp_path / str(seed), run_it) for seed in seeds]
    assert 0 in codes


def test_thirty_mutations_of_a_checkpoint_folder(whole, tmp_path, capsys):
    mutations(range(30), whole, tmp_path, capsys)


@pytest.mark.slow
def test_two_hundred_mutations_of_a_checkpoint_folder(whole, tmp_path, capsys):
    mutations(range(30, 230), whole, tmp_path, capsys)


@pytest.mark.slow
def test_mutations_in_a_process_of_its_own(whole, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run_it(arguments):
        command = [sys.executable, "-m", "maxup", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    for seed in range(1000, 1005):
        one(seed, whole, tmp_path / str(seed), run_it)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1), ("step", 10**30), ("step", "8"), ("step", 8.0), ("step", 5), ("step", None),
        ("recorded", 9), ("recorded", -1), ("recorded", True), ("metrics_size", -1), ("metrics_size", 1.0),
        ("seconds", -1.0), ("seconds", float("nan")), ("seconds", "1"), ("training_seconds", float("inf")),
        ("best", {}), ("best", {"epoch": 1}), ("last", {"epoch": 2, "test_loss": "x", "test_accuracy": 0.5}),
        ("model", {}), ("model", {"0.weight": torch.zeros(2)}), ("ema", None), ("optimizer", {}), ("scaler", {}),
        ("loader", {"epoch": 0, "position": 0}), ("loader", {"epoch": -1, "position": 11}), ("loader", []),
        ("ranks", [{"loss": torch.zeros(2), "objective": {"step": 8}}]),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_named_and_the_checkpoint_before_taken(whole, tmp_path, capsys, key, value):
    shutil.copytree(whole[0], tmp_path / "copy")
    folder = tmp_path / "copy" / "run" / "checkpoints"
    state = checkpoint.load(folder / "step-000008")
    checkpoint.save(folder, 8, state | {key: value})
    capsys.readouterr()
    assert main(arguments(tmp_path / "copy")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    said = [line for line in out.splitlines() if "does not fit this run: " in line]
    assert len(said) == 1
    assert "step-000008" in said[0]
    assert said[0].endswith(f"its {key} is none that a run of this recipe has at step 8")
    assert all(torch.equal(t, trained(tmp_path / "copy")[k]) for k, t in whole[1].items())

"""Damaged and malicious checkpoints: one message, the checkpoint before it is used, and nothing is executed."""

import hashlib
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch

from maxup.errors import CheckpointError
from maxup.lab.storage import atomic_io, checkpoint, state_io
from maxup.lab.storage.checkpoint import best, latest, load, save
from maxup.lab.storage.locks import locked
from tests.lab.storage.test_checkpoint import FILES, state_of
from tests.lab.storage.test_state_io import same


def forge(path):
    """A manifest that fits whatever is in the files."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name in FILES[:2]:
        data = (path / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def mutate(data, chance):
    at = chance.randrange(len(data) or 1)
    kind = chance.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + chance.randbytes(chance.randrange(1, 20)) + data[at:]
    if kind == 2:
        return data[:at] + data[at + chance.randrange(1, 20) :]
    if kind == 3:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    return chance.randbytes(at)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("forged", [False, True], ids=["damaged", "forged"])
def test_mutations(name, forged, tmp_path):
    chance = random.Random(name)
    state = {"w": torch.arange(6.0), "rest": [1, (2.5, None, {"a": True, 3: "x"})], "nan": float("inf")}
    good = save(tmp_path, 1, state)
    previous = save(tmp_path / "run", 1, state_of(1))
    for round_ in range(60):
        bad = tmp_path / "run" / "step-000002"
        shutil.copytree(good, bad)
        manifest = json.loads((bad / "manifest.json").read_text()) | {"step": 2}
        (bad / "manifest.json").write_text(json.dumps(manifest))
        (bad / name).write_bytes(mutate((bad / name).read_bytes(), chance))
        if forged and name != "manifest.json":
            forge(bad)
        warnings = []
        step, found = latest(tmp_path / "run", warnings.append)
        if step == 1:
            assert same(found, state_of(1))
            assert len(warnings) == 1
            assert warnings[0].startswith(f"{bad} is not a valid checkpoint: ")
            assert "\n" not in warnings[0]
        elif not forged:
            assert same(found, state), round_
        shutil.rmtree(bad)
    assert same(load(previous), state_of(1))


HEADER = '{"a":{"dtype":"%s","shape":%s,"data_offsets":[0,%d]}}'


def tensor_file(dtype="F32", shape="[1]", size=4, data=b"\0" * 4, header=None):
    text = (header or HEADER % (dtype, shape, size)).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        tensor_file("F8_E8M0", "[4]"),  # which safetensors writes and cannot read
        tensor_file("F4", "[8]"),
        tensor_file("X"),
        tensor_file(shape="[2]"),
        tensor_file(shape="[-1]"),
        tensor_file(shape=f"[{2**62}, 4]"),
        tensor_file(shape="[1, 0]", size=0),
        tensor_file(size=2**40),
        tensor_file(header='{"a":' * 5000 + "}" * 5000),
        tensor_file(header="{}", data=b""),
        tensor_file(header='{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'),
        (2**63).to_bytes(8, "little") + b"{}",
        b"",
    ],
)
def test_foreign_tensors(data, tmp_path):
    path = save(tmp_path, 1, {"a": torch.ones(1)})
    (path / "tensors.safetensors").write_bytes(data)
    forge(path)
    with pytest.raises(CheckpointError, match=r"^\S+ is not a valid checkpoint: [^\n]+$"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"dict":' * 100_000,
        "[" * 400 + "]" * 400,
        "NaN",
        "1e999",
        "9" * 5000,
        '{"dict": [["a", 1], ["a", 2]]}',
        '{"tensor": "a", "tensor": "a"}',
        '{"tensor": "b"}',
        '[{"tensor": "a"}, {"tensor": "a"}]',
        '{"tensor": 0}',
        '{"__reduce__": ["os.system", "true"]}',
        "null",
        "null null",
        "",
        "\ufeff1",
    ],
    ids=range(16),
)
def test_foreign_documents(text, tmp_path):
    path = save(tmp_path, 1, {"a": torch.ones(1)})
    (path / "state.json").write_text(text)
    forge(path)
    with pytest.raises(CheckpointError, match=r"is not a valid checkpoint: \S.*$"):
        load(path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"is not a valid checkpoint: .*manifest.json|recursion|nested"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"format": "other"},
        {"format": ["maxup-checkpoint"]},
        {"step": "1"},
        {"step": None},
        {"files": {}},
        {"files": []},
        {"files": {"tensors.safetensors": {}, "state.json": {}}},
        {"files": {"tensors.safetensors": None, "state.json": 3}},
        {"files": {"../secret": {}}},
    ],
    ids=str,
)
def test_foreign_manifests(change, tmp_path):
    path = save(tmp_path, 1, {})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(
        CheckpointError, match="its format version is" if "version" in change else "manifest|wrong size"
    ):
        load(path)
    for key in manifest:
        (path / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k != key}))
        with pytest.raises(CheckpointError, match=r"manifest.json does not describe a checkpoint"):
            load(path)
    (path / "manifest.json").write_text(json.dumps(manifest | {"step": 7}))
    warnings = []
    assert latest(tmp_path, warnings.append) is None
    assert "another step" in warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_links_pipes_folders_and_holes(name, tmp_path):
    path, elsewhere = save(tmp_path, 1, {"a": torch.ones(1)}), tmp_path / "elsewhere"
    os.rename(path / name, elsewhere)
    with pytest.raises(CheckpointError, match=name):
        load(path)
    (path / name).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        load(path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        load(path)
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        load(path)
    (path / name).rmdir()
    os.rename(elsewhere, path / name)
    load(path)
    (tmp_path / "step-000002").symlink_to(path)
    (tmp_path / "step-000003").touch()
    (tmp_path / "step-000004").mkdir()
    warnings = []
    assert latest(tmp_path, warnings.append)[0] == 1
    assert [w.split(" is not a valid checkpoint: ")[0] for w in warnings] == [
        f"{tmp_path}/step-00000{n}" for n in (4, 3, 2)
    ]


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("name", [*FILES, "best.json", ".lock"])
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_malicious_pickles_do_not_run(name, kind, tmp_path):
    marker = str(tmp_path / "marker")
    folder = tmp_path / "run"
    path = save(folder, 1, {"a": torch.ones(1)}, best=True)
    target = folder / name if name in ("best.json", ".lock") else path / name
    if kind == "pickle":
        target.write_bytes(pickle.dumps(Payload(marker)))
    else:
        torch.save(Payload(marker), tmp_path / "payload")
        os.replace(tmp_path / "payload", target)
    for forged in (False, True):
        if forged and name != "manifest.json":
            forge(path)
        warnings = []
        found = latest(folder, warnings.append), best(folder, warnings.append)
        if name in FILES:
            assert found == (None, None)
        with locked(folder):
            save(folder, 2, {})
        assert not os.path.exists(marker)
        shutil.rmtree(folder / "step-000002")
    if kind == "pickle":
        pickle.loads(pickle.dumps(Payload(marker)))
        assert os.path.exists(marker)  # so it would have run


def test_no_code_is_near():
    source = "".join(Path(module.__file__).read_text() for module in (checkpoint, atomic_io, state_io))
    assert not [word for word in ("pickle", " torch.load", "eval(", "exec(", "marshal") if word in source]

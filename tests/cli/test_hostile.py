"""A malicious pickle in place of every file that the command reads: nothing runs, and there is one message."""

import gzip
import json
import os
import pickle
import shutil

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.errors import LoadError
from maxup.lab.storage.atomic_io import sha256
from tests.lab.data.fake import write_cifar10, write_cifar100, write_fashion_mnist
from tests.lab.storage.test_checkpoint_hostile import forge

RECIPE = """
base: digits/mlp-gaussian-maxup
data: {name: NAME, root: ROOT, train_size: null}
model: {args: {hidden: [4]}}
epochs: 2
batch_size: 4
"""
WRITE = {"cifar10": write_cifar10, "cifar100": write_cifar100, "fashion_mnist": write_fashion_mnist}
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "fashion_mnist": "fashion-mnist"}


class Payload:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def pickled(path):
    path.write_bytes(pickle.dumps(Payload()))


def saved_by_torch(path):
    torch.save(Payload(), path.with_name("payload"))  # it takes no name that begins with a dot
    path.with_name("payload").replace(path)


def zipped(path):
    path.write_bytes(gzip.compress(pickle.dumps(Payload())))


KINDS = {"pickle": pickled, "torch": saved_by_torch, "gzip": zipped}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Return the file that a payload would write."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "ran").exists()


def test_the_payload_is_live(tmp_path):
    pickled(tmp_path / "file")
    pickle.loads((tmp_path / "file").read_bytes())
    (tmp_path / "ran").rmdir()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run on every data set, its data and its model as exported."""
    folder = tmp_path_factory.mktemp("trained")
    for name, write in WRITE.items():
        write(folder / "data" / FOLDERS[name])
        (folder / f"{name}.yaml").write_text(RECIPE.replace("NAME", name).replace("ROOT", "data"))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert main(["train", f"{name}.yaml", "--out", name, "--trackers", "none"]) == 0
            assert main(["export", name, f"{name}-model"]) == 0
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A copy to damage."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def commands(name):
    yield ["train", f"{name}.yaml", "--out", name]
    yield ["train", f"{name}.yaml", "--out", f"{name}-new", "--trackers", "none"]
    yield ["eval", name]
    yield ["eval", name, "--checkpoint", "best"]
    yield ["export", name, "to"]


def one_message(command, capsys, *words):
    capsys.readouterr()
    assert main(command) == 1, command
    printed = capsys.readouterr().err
    assert printed.startswith(f"maxup {command[0]}: ")
    assert len(printed.splitlines()) == 1
    assert all(word in printed for word in words), (words, printed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRITE)
def test_every_file_of_a_data_set(place, capsys, name, kind):
    for path in sorted((place / "data" / FOLDERS[name]).iterdir()):
        content = path.read_bytes()
        KINDS[kind](path)
        for command in commands(name):
            one_message(command, capsys, path.name)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forged", [False, True], ids=["plain", "forged"])
@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json", "manifest.json"])
def test_every_file_of_a_checkpoint(place, capsys, file, forged, kind):
    for folder in (place / "fashion_mnist" / "checkpoints").glob("step-*"):
        KINDS[kind](folder / file)
        if forged and file != "manifest.json":
            forge(folder)
    for command in commands("fashion_mnist"):
        if "fashion_mnist-new" not in command:
            one_message(command, capsys, "checkpoint")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["checkpoints/best.json", "metrics.jsonl", "run.json", ".lock", "maxup/events"])
def test_every_other_file_of_a_run(place, capsys, file, kind):
    """Which a verb may do without."""
    (place / "fashion_mnist" / "maxup").mkdir(exist_ok=True)
    KINDS[kind](place / "fashion_mnist" / file)
    for command in commands("fashion_mnist"):
        capsys.readouterr()
        if main(command):
            printed = capsys.readouterr().err
            assert printed.startswith(f"maxup {command[0]}: ")
            assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_every_file_of_a_model(place, file, kind):
    model = place / "fashion_mnist-model"
    config = json.loads((model / "config.json").read_text())
    KINDS[kind](model / file)
    for forged in (False, file == "model.safetensors"):
        if forged:
            content = (model / file).read_bytes()
            config["files"][file] = {"size": len(content), "sha256": sha256(content)}
            (model / "config.json").write_text(json.dumps(config))
        with pytest.raises(LoadError, match=r"^cannot load a model from \S+: [^\n]+$"):
            maxup.load(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe(place, capsys, kind):
    KINDS[kind](place / "mine.yaml")
    one_message(["train", "mine.yaml"], capsys, "mine.yaml")

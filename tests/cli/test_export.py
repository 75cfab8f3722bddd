"""`maxup export` and `maxup.load`: the same model on the other side, and nothing runs."""

import json
import os
import pickle
import shutil

import pytest
import safetensors.torch
import torch

import maxup
from maxup.cli.main import main
from maxup.engine.durable import sha256
from maxup.engine.runs import open_run
from maxup.saved import LoadError
from tests.cli.runs import make


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    record = make(folder / "run")
    assert main(["export", str(folder / "run"), str(folder / "model")]) == 0
    return folder, record


@pytest.fixture
def model(exported, tmp_path):
    """A copy to damage."""
    return shutil.copytree(exported[0] / "model", tmp_path / "model")


def rewrite(folder, change=None, weights=None):
    """Change config.json, and the weights with a promise to match."""
    config = json.loads((folder / "config.json").read_text())
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
        config["files"]["model.safetensors"] = {"size": len(weights), "sha256": sha256(weights)}
    if change:
        change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_the_model_comes_back(exported):
    folder, record = exported
    opened, loaded = open_run(folder / "run"), maxup.load(folder / "model")
    x = opened.task.test.normalise(opened.task.test.x[:64])
    assert not loaded.training
    assert torch.equal(loaded(x), opened.model(x))
    assert loaded.config["metrics"] == record["last"]
    assert loaded.config["classes"] == list("0123456789")
    assert (loaded.config["shape"], loaded.config["top"], loaded.config["mean"]) == ([1, 8, 8], 16, [0.0])
    assert (loaded.config["format"], loaded.config["version"]) == ("maxup-model", 1)


def test_the_config_suffices_to_classify_bytes(exported):
    folder, record = exported
    loaded, test = maxup.load(folder / "model"), open_run(folder / "run").task.test
    c = loaded.config
    with torch.no_grad():
        x = (test.x / c["top"] - torch.tensor(c["mean"]).view(-1, 1, 1)) / torch.tensor(c["std"]).view(-1, 1, 1)
        accuracy = float((loaded(x).argmax(1) == test.y).double().mean())
    assert accuracy == pytest.approx(record["last"]["test_accuracy"])


def test_loading_takes_nothing_from_the_random_stream(exported):
    before = torch.get_rng_state()
    maxup.load(exported[0] / "model")
    assert torch.equal(before, torch.get_rng_state())


def test_it_does_not_overwrite(exported, capsys):
    folder, _ = exported
    assert main(["export", str(folder / "run"), str(folder / "model")]) == 1
    assert "not an empty folder" in capsys.readouterr().err


class Payload:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pickle_in_place_of_a_file_does_not_run(model, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "config.json":
        (model / name).write_bytes(pickle.dumps(Payload()))
    else:
        rewrite(model, weights=pickle.dumps(Payload()))
    with pytest.raises(LoadError, match="holds no model"):
        maxup.load(model)
    torch.save(Payload(), model / name)
    with pytest.raises(LoadError, match="holds no model"):
        maxup.load(model)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "flipped", "folder", "link"])
def test_damage_gives_a_sentence(model, name, damage):
    path = model / name
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to("/dev/zero")
    elif damage != "gone":
        half = len(data) // 2
        flipped = data[:half] + bytes([data[half] ^ 0x80]) + data[half + 1 :]
        path.write_bytes({"empty": b"", "half": data[:half], "flipped": flipped}[damage])
    with pytest.raises(LoadError) as error:
        maxup.load(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(version=2),
        lambda c: c.update(format="other"),
        lambda c: c.update(shape=[1, 8]),
        lambda c: c.update(shape=[1, -8, 8]),
        lambda c: c.update(classes=["a", "b"]),
        lambda c: c.update(classes=[]),
        lambda c: c["recipe"]["model"].update(name="os.system"),
        lambda c: c["recipe"]["model"].update(name="os:system", args={"command": "touch ran"}),
        lambda c: c["recipe"]["model"].update(args={"width": 10**9}),
        lambda c: c["recipe"]["model"].update(args={"width": "wide"}),
        lambda c: c["recipe"]["model"].update(name="mlp", args={"hidden": [10**12, 10**12]}),
        lambda c: c["files"].update({"model.safetensors": "yes"}),
    ],
)
def test_a_hostile_config_gives_a_sentence(model, change):
    rewrite(model, change)
    with pytest.raises(LoadError) as error:
        maxup.load(model)
    assert "\n" not in str(error.value)


def test_weights_of_another_model_give_a_sentence(model):
    weights = safetensors.torch.load_file(model / "model.safetensors")
    first = "0.weight"
    others = [{k: v for k, v in weights.items() if k != first}, weights | {"extra": torch.ones(1)}]
    others += [weights | {first: weights[first].double()}, weights | {first: weights[first][:1].clone()}]
    for other in others:
        rewrite(model, weights=safetensors.torch.save(other))
        with pytest.raises(LoadError, match="does not fit"):
            maxup.load(model)

"""Exported models, also damaged and malicious ones. Pickles in place of the files are in cli/test_hostile.py."""

import json
import shutil
import sys

import pytest
import safetensors.torch
import torch

import maxup
from maxup.errors import LoadError
from maxup.lab.models import create_model
from maxup.lab.models.awd_lstm import AWDLSTM
from maxup.lab.models.export import LARGEST, save
from maxup.lab.storage.atomic_io import sha256


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    net = create_model("conv", shape=(1, 8, 8), num_classes=10, width=4)
    recipe = {"model": {"name": "conv", "args": {"width": 4}}}
    save(folder / "model", net, {"recipe": recipe, "classes": list("0123456789"), "shape": [1, 8, 8], "note": "mine"})
    return folder, net


@pytest.fixture
def model(exported, tmp_path):
    """A copy to damage."""
    return shutil.copytree(exported[0] / "model", tmp_path / "model")


def rewrite(folder, change=None, weights=None):
    """Change config.json, and the weights with a matching checksum."""
    config = json.loads((folder / "config.json").read_text())
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
        config["files"]["model.safetensors"] = {"size": len(weights), "sha256": sha256(weights)}
    if change:
        change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_the_weights_and_the_config_round_trip(exported):
    folder, net = exported
    loaded = maxup.load(folder / "model")
    assert not loaded.training
    assert loaded.config["note"] == "mine"
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(loaded(x), net.eval()(x))


def test_numbers_that_json_cannot_store_are_strings_in_the_config(exported, tmp_path):
    config = json.loads((exported[0] / "model" / "config.json").read_text())
    save(tmp_path / "model", exported[1], config | {"metrics": {"test_loss": float("nan")}})
    assert maxup.load(tmp_path / "model").config["metrics"] == {"test_loss": "nan"}


def test_many_words_and_many_classes_round_trip(tmp_path):
    words = [f"{'wört' * (i % 4)}{i}" for i in range(40_000)]
    args = {"embedding": 2, "hidden": 2, "layers": 1}
    recipe = {"task": "language", "model": {"name": "awd_lstm", "args": args}}
    save(tmp_path / "text", AWDLSTM(len(words), **args), {"recipe": recipe, "words": words})
    assert maxup.load(tmp_path / "text").config["words"] == words
    classes = [f"n{i:08d} an animal, a plant or a thing that has a long name" for i in range(21_841)]
    net = create_model("mlp", shape=(1, 2, 2), num_classes=len(classes), hidden=[2])
    recipe = {"model": {"name": "mlp", "args": {"hidden": [2]}}}
    save(tmp_path / "images", net, {"recipe": recipe, "classes": classes, "shape": [1, 2, 2]})
    assert maxup.load(tmp_path / "images").config["classes"] == classes


@pytest.mark.parametrize("normalise", [True, False])
def test_an_export_of_version_0_1_loads(tmp_path, normalise):
    """Its recipe has `model.normalise`, and an objective by name with its arguments in sections."""
    weight, bias = torch.arange(8.0).view(2, 4) / 8, torch.tensor([0.5, -1.0])
    tensors = {"1.weight": weight, "1.bias": bias}
    if normalise:
        mean, std = torch.tensor([[[0.25]]]), torch.tensor([[[0.5]]])
        tensors = {"mean": mean, "std": std} | {f"model.{name}": tensor for name, tensor in tensors.items()}
    data = safetensors.torch.save(tensors)
    (tmp_path / "model.safetensors").write_bytes(data)
    model = {"name": "mlp", "args": {"hidden": []}, "normalise": normalise, "pretrained": False, "weights": None}
    config = {
        "format": "maxup-model",
        "version": 1,
        "files": {"model.safetensors": {"size": len(data), "sha256": sha256(data)}},
        "recipe": {
            "task": "vision",
            "data": {"name": "digits", "train_size": 500},
            "model": model,
            "perturb": [{"name": "gaussian", "sigma": 0.5}],
            "objective": "maxup",
            "maxup": {"m": 8, "warmup": 0, "chunk": 2, "rank": "kl"},
            "adversarial": {"radius": 0.5, "p": 2, "steps": 10},
            "smoothadv": {"radius": 0.5, "attack": "pgd", "steps": 10, "samples": 1, "warmup": 10},
            "hard_fraction": 0.25,
            "epochs": 3,
        },
        "task": {"model_from": "", "data_from": ""},
        "metrics": {"test_accuracy": 0.9},
        "step": 12,
        "classes": ["a", "b"],
        "shape": [1, 2, 2],
        "mean": [0.25],
        "std": [0.5],
        "top": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = maxup.load(tmp_path)
    x = torch.rand(3, 1, 2, 2)
    pixels = (x - 0.25) / 0.5 if normalise else x
    torch.testing.assert_close(loaded(x), pixels.flatten(1) @ weight.T + bias)
    recipe = loaded.config["recipe"]
    assert recipe["objective"] == {"name": "maxup", "m": 8, "warmup": 0, "chunk_size": 2, "score": "kl"}
    assert recipe["model"]["normalize"] is normalise
    assert not {"maxup", "adversarial", "smoothadv", "hard_fraction"} & set(recipe)
    assert loaded.config | {"recipe": 0} == config | {"recipe": 0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"note": "x" * LARGEST}, "config.json has the wrong size"),
        ({"classes": ["a", "b"]}, "does not fit the model"),
        ({"recipe": {"model": {"name": "nothing", "args": {}}}}, "nothing"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_files_that_cannot_be_loaded_are_removed(exported, tmp_path, change, why, exists):
    config = json.loads((exported[0] / "model" / "config.json").read_text()) | change
    if exists:
        (tmp_path / "model").mkdir()
    with pytest.raises(LoadError, match=f"cannot load the exported model .*{why}.* its files were removed") as error:
        save(tmp_path / "model", exported[1], config)
    assert "\n" not in str(error.value)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "model"] if exists else [])


def test_a_full_disk_leaves_nothing_behind(exported, tmp_path, monkeypatch):
    def full(path, data):
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("maxup.lab.models.export.write", full)
    with pytest.raises(LoadError, match=r"cannot write .*: No space left on device"):
        save(tmp_path / "model", exported[1], {})
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(exported, tmp_path):
    folder, net = exported
    (tmp_path / "file").touch()
    for place in (folder / "model", tmp_path / "file"):
        with pytest.raises(LoadError, match="already exists and is not an empty folder"):
            save(place, net, {})


def test_loading_takes_nothing_from_the_random_stream(exported):
    before = torch.get_rng_state()
    maxup.load(exported[0] / "model")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "flipped", "folder", "link"])
def test_damage_is_an_error(model, name, damage):
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
        lambda c: c["recipe"].update(objective=["maxup"], maxup="yes", model=[]),
    ],
)
def test_a_malicious_config_is_an_error(model, change):
    rewrite(model, change)
    with pytest.raises(LoadError) as error:
        maxup.load(model)
    assert "\n" not in str(error.value)


def test_a_config_cannot_ask_for_a_download(tmp_path, monkeypatch):
    net = create_model("timm/resnet10t", shape=(3, 32, 32), num_classes=2)
    timm = sys.modules["timm"]
    asked, theirs = [], timm.create_model
    recipe = {"model": {"name": "timm/resnet10t", "args": {"pretrained": True}}}
    save(tmp_path / "model", net, {"recipe": recipe, "classes": ["a", "b"], "shape": [3, 32, 32]})

    def watched(name, *, pretrained, **options):
        asked.append(pretrained)
        return theirs(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", watched)
    maxup.load(tmp_path / "model")
    assert asked == [False, False]  # the outline and the model


def test_weights_of_another_model_are_an_error(model):
    weights = safetensors.torch.load_file(model / "model.safetensors")
    first = "0.weight"
    others = [{k: v for k, v in weights.items() if k != first}, weights | {"extra": torch.ones(1)}]
    others += [weights | {first: weights[first].double()}, weights | {first: weights[first][:1].clone()}]
    for other in others:
        rewrite(model, weights=safetensors.torch.save(other))
        with pytest.raises(LoadError, match="does not fit"):
            maxup.load(model)


def test_an_invalid_folder_name(tmp_path):
    with pytest.raises(LoadError, match="cannot write"):
        save(tmp_path / "\ud83d\ude00", torch.nn.Linear(1, 1), {})

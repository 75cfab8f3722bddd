"""Models that were exported, damaged and hostile ones among them; pickles in their place are in cli/test_hostile.py."""

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
    """Change config.json, and the weights with a promise to match."""
    config = json.loads((folder / "config.json").read_text())
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
        config["files"]["model.safetensors"] = {"size": len(weights), "sha256": sha256(weights)}
    if change:
        change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_the_weights_and_the_config_come_back(exported):
    folder, net = exported
    loaded = maxup.load(folder / "model")
    assert not loaded.training
    assert loaded.config["note"] == "mine"
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(loaded(x), net.eval()(x))


def test_numbers_that_json_does_not_know_are_words_in_the_config(exported, tmp_path):
    config = json.loads((exported[0] / "model" / "config.json").read_text())
    save(tmp_path / "model", exported[1], config | {"metrics": {"test_loss": float("nan")}})
    assert maxup.load(tmp_path / "model").config["metrics"] == {"test_loss": "nan"}


def test_many_words_and_many_classes_come_back(tmp_path):
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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"note": "x" * LARGEST}, "config.json has the wrong size"),
        ({"classes": ["a", "b"]}, "does not fit the model"),
        ({"recipe": {"model": {"name": "nothing", "args": {}}}}, "nothing"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_what_cannot_be_read_back_is_not_left_behind(exported, tmp_path, change, why, there):
    config = json.loads((exported[0] / "model" / "config.json").read_text()) | change
    if there:
        (tmp_path / "model").mkdir()
    with pytest.raises(LoadError, match=f"cannot be read back.*{why}.*nothing was left") as error:
        save(tmp_path / "model", exported[1], config)
    assert "\n" not in str(error.value)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "model"] if there else [])


def test_a_full_disk_leaves_nothing_behind(exported, tmp_path, monkeypatch):
    def full(path, data):
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("maxup.lab.models.export.write", full)
    with pytest.raises(LoadError, match="could not be written: No space left on device"):
        save(tmp_path / "model", exported[1], {})
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(exported, tmp_path):
    folder, net = exported
    (tmp_path / "file").touch()
    for place in (folder / "model", tmp_path / "file"):
        with pytest.raises(LoadError, match="is there already and not an empty folder"):
            save(place, net, {})


def test_loading_takes_nothing_from_the_random_stream(exported):
    before = torch.get_rng_state()
    maxup.load(exported[0] / "model")
    assert torch.equal(before, torch.get_rng_state())


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
        lambda c: c.update(num_classes=["a", "b"]),
        lambda c: c.update(num_classes=[]),
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


def test_weights_of_another_model_give_a_sentence(model):
    weights = safetensors.torch.load_file(model / "model.safetensors")
    first = "0.weight"
    others = [{k: v for k, v in weights.items() if k != first}, weights | {"extra": torch.ones(1)}]
    others += [weights | {first: weights[first].double()}, weights | {first: weights[first][:1].clone()}]
    for other in others:
        rewrite(model, weights=safetensors.torch.save(other))
        with pytest.raises(LoadError, match="does not fit"):
            maxup.load(model)


def test_a_name_that_no_folder_can_have(tmp_path):
    with pytest.raises(LoadError, match="could not be written"):
        save(tmp_path / "\ud83d\ude00", torch.nn.Linear(1, 1), {})
